"""A loss, or a loop of one's own, that changes the replica that it computes on: refused, or put back."""

from __future__ import annotations

import copy
import itertools
import logging
import math
import multiprocessing
from functools import partial
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS, OTHER_BITS, SAME_BITS

import hogwild
from hogwild.rules.registry import NAMES

SGD = partial(torch.optim.SGD, lr=0.01)


def replaces_a_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def replaces_a_layer(model: Any) -> None:
    model[2] = copy.deepcopy(model[2])


def loads_by_assigning(model: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def takes_a_bias_away(model: Any) -> None:
    model[0].bias = None


REPLACED = {
    replaces_a_parameter: "0.weight",
    replaces_a_layer: r"2\.weight, 2\.bias",
    loads_by_assigning: "0.weight, 0.bias, 2.weight and 1 more",
    takes_a_bias_away: "0.bias",
}


@pytest.mark.parametrize("update", NAMES)
@pytest.mark.parametrize("change", REPLACED)
def test_what_is_trained_is_not_replaced(change: Any, update: str) -> None:
    """The gradient of the other one would be applied to what was there, and never be seen by who computes on it."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 3:
            change(model)
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.ArgumentError, match=rf"^{REPLACED[change]} of the replica was replaced before"):
        problems.train(loss=loss, update=update, updates=6, recheck=0)


def test_nor_is_it_by_a_loop_of_ones_own() -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            replaces_a_parameter(replica)
            loss = replica(torch.ones(2, 8)).square().mean()
            worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())

    with pytest.raises(hogwild.ArgumentError, match=r"^0\.weight of the replica was replaced"):
        hogwild.launch(work, problems.mlp(), optimizer=SGD, updates=6, update="ordered", kind="threads")


def test_layers_that_are_not_trained_may_be_made_anew_and_trained_ones_be_wrapped() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        model[1] = nn.ReLU()
        return problems.cross_entropy(model, batch)

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = problems.mlp()

        def forward(self, x: Tensor) -> Tensor:
            self.layers = nn.Sequential(*self.layers)
            return self.layers(x)

    problems.train(loss=loss, update="ordered", updates=6)
    problems.train(Nested(), update="ordered", updates=6)


def test_a_call_with_other_tensors_replaces_nothing() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        own = {name: 1.0 * parameter for name, parameter in model.named_parameters()}
        return nn.functional.cross_entropy(torch.func.functional_call(model, own, (batch[0],)), batch[1])

    one, other = (problems.train(loss=used, update="ordered", updates=20) for used in (loss, problems.cross_entropy))
    assert one.digest == other.digest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_the_modes_of_layers_are_those_that_training_began_in(update: str, kind: str) -> None:
    """One worker would have computed all that follows otherwise, and another would not."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 13:
            model.eval()
        return problems.cross_entropy(model, batch)

    def digest(workers: int) -> str:
        model = problems.conv_bn()
        run = problems.train(model, loss=loss, update=update, updates=20, workers=workers, kind=kind, recheck=0)
        return run.digest

    assert len({digest(1), digest(2), digest(2)}) == 1


# --- parameters that a loss freezes


def alternating(model: Any, batch: Any) -> Tensor:
    """Its first layer is trained at every other update."""
    model[0].requires_grad_(hogwild.worker_info().update % 2 == 0)
    return problems.cross_entropy(model, batch)


def frozen_once(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen at an update, and never set free by the loss."""
    if hogwild.worker_info().update == 3:
        model[0].requires_grad_(False)
    return problems.cross_entropy(model, batch)


@pytest.mark.parametrize("gradient", [None, "backward"])
@pytest.mark.parametrize("update", NAMES)
def test_what_a_loss_freezes_is_not_trained_at_that_update(update: str, gradient: str | None) -> None:
    by_hand, numbers = problems.mlp(), itertools.count()

    def loss_by_hand(model: Any, batch: Any) -> Tensor:
        model[0].requires_grad_(next(numbers) % 2 == 0)
        return problems.cross_entropy(model, batch)

    settings: dict[str, Any] = {"update": update, "updates": 20, "optimizer": problems.MOMENTUM, "compensation": "none"}
    settings |= {"staleness": 0} if update == "ordered" else {"micro_batches": 1} if update == "sync" else {}
    problems.train_serially(by_hand, loss=loss_by_hand, **settings)
    run = problems.train(loss=alternating, workers=1, gradient=gradient, recheck=0, **settings)
    assert run.digest == hogwild.digest(by_hand)


@pytest.mark.parametrize("gradient", [None, "backward"])
@pytest.mark.parametrize("loss", [alternating, frozen_once])
@pytest.mark.parametrize("update", SAME_BITS)
def test_what_is_frozen_hangs_on_no_worker(update: str, loss: Any, gradient: str | None) -> None:
    """Each two of number, kind and what is computed again meet: a worker asks for each of them by itself."""

    def digest(workers: int, kind: str, recheck: float) -> str:
        settings = {"update": update, "updates": 20, "gradient": gradient, "recheck": recheck}
        return problems.train(loss=loss, workers=workers, kind=kind, **settings).digest

    one, other = KINDS
    found = {digest(1, one, 0.0), digest(2, one, 1.0), digest(1, other, 1.0), digest(2, other, 0.0)}
    assert len(found) == 1


THAWED = "0.weight, 0.bias: frozen for one gradient, and trained again from the next"


@pytest.mark.parametrize("update", NAMES)
def test_what_is_frozen_once_is_told_once(update: str, caplog: pytest.LogCaptureFixture) -> None:
    problems.train(loss=frozen_once, update=update, updates=20, workers=1, kind="threads", recheck=0)
    assert caplog.text.count(THAWED) == len(caplog.records) == 1


def frozen_from_then_on(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen at every update from one on."""
    model[0].requires_grad_(hogwild.worker_info().update < 3)
    return problems.cross_entropy(model, batch)


def frozen_inside(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen while a part of the loss is computed, once."""
    at_once = hogwild.worker_info().update == 3
    model[0].requires_grad_(not at_once)
    other = problems.cross_entropy(model, batch)
    model[0].requires_grad_(True)
    return other + problems.cross_entropy(model, batch)


def warming_up(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen at each of the first updates, and trained at all others."""
    if hogwild.worker_info().update < 8:
        model[0].requires_grad_(False)
    return problems.cross_entropy(model, batch)


def now_and_then(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen at every seventh update, after the first."""
    if hogwild.worker_info().update % 7 == 6:
        model[0].requires_grad_(False)
    return problems.cross_entropy(model, batch)


@pytest.mark.parametrize("recheck", [0.0, 1.0])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loss", [alternating, frozen_from_then_on, frozen_inside, warming_up, now_and_then])
def test_nothing_is_told_where_a_loss_sees_to_it(
    loss: Any, workers: int, recheck: float, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"update": "ordered", "updates": 48, "workers": workers, "kind": "threads"}
    problems.train(loss=loss, recheck=recheck, **settings)
    assert caplog.records == []


def frozen_by_each(model: Any, batch: Any) -> Tensor:
    """Its first layer is frozen at the first update that a worker takes part in."""
    if not hasattr(model, "began"):
        model[0].requires_grad_(False)
        model.began = True
    return problems.cross_entropy(model, batch)


ONCE = pytest.mark.parametrize(("update", "loss"), [("ordered", frozen_once), ("locked", frozen_by_each)])


@ONCE
def test_one_thread_tells_it_for_all(update: str, loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    problems.train(loss=loss, update=update, updates=200, workers=2, kind="threads", recheck=1.0)
    assert caplog.text.count(THAWED) == len(caplog.records) == 1


@ONCE
@pytest.mark.parametrize("workers", [1, 2])
def test_and_so_does_one_process(workers: int, update: str, loss: Any) -> None:
    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hogwild.worker_info().log(told=record.getMessage().startswith(THAWED))

    def heard(model: Any, batch: Any) -> Tensor:
        logger = logging.getLogger("hogwild")
        if multiprocessing.parent_process() is not None and not logger.handlers:
            logger.addHandler(Heard())
        return loss(model, batch)

    run = problems.train(loss=heard, update=update, updates=200, workers=workers, kind="processes", recheck=0)
    assert [row["told"] for row in run.logged] == [1.0]


# --- modes, by a loop of one's own


def test_a_loop_of_ones_own_may_choose_them_once() -> None:
    modes: list[bool] = []

    def work(worker: hogwild.Worker) -> None:
        worker.replica.eval()
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            modes.append(replica.training)
            loss = replica(torch.ones(2, 8)).square().mean()
            worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())

    hogwild.launch(work, problems.mlp(), optimizer=SGD, updates=6, update="ordered", kind="threads", workers=1)
    assert modes == [False] * 6


# --- a loss that a loop tells


def told(losses: Any, **settings: Any) -> hogwild.Run:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            loss = replica(torch.ones(2, 8)).square().mean()
            gradients = torch.autograd.grad(loss, list(replica.parameters()))
            worker.commit(ticket, gradients, *losses(ticket.update))

    return hogwild.launch(work, problems.mlp(), optimizer=SGD, updates=8, kind="threads", workers=1, **settings)


@pytest.mark.parametrize("update", NAMES)
def test_a_loss_that_is_told_and_is_no_number_is_one_that_is_not_finite(update: str) -> None:
    spoilt: list[int] = []

    def losses(at: int) -> tuple[float]:
        spoilt.extend([at] if at == 5 else [])
        return (math.nan if at == 5 else 1.0,)

    with pytest.raises(hogwild.NonFiniteError, match="is nan at update 5"):
        told(losses, update=update)
    spoilt.clear()
    skipped = told(losses, update=update, on_nonfinite="skip")
    assert sum(usage.skipped for usage in skipped.workers) == len(spoilt)
    assert math.isnan(told(losses, update=update, on_nonfinite="ignore").losses[5]) or update in OTHER_BITS


@pytest.mark.parametrize("update", NAMES)
def test_a_loss_that_is_not_told_is_none(update: str) -> None:
    assert told(lambda at: (), update=update).updates == 8
    assert told(lambda at: (None,), update=update).updates == 8


@pytest.mark.parametrize("loss", ["low", torch.ones(3)], ids=["text", "three numbers"])
def test_a_loss_that_is_no_number_is_refused(loss: Any) -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"^loss is a \w+ that is no number: "):
        told(lambda at: (loss,), update="ordered")


@pytest.mark.parametrize(
    ("ticket", "gradient", "message"),
    [
        (int, list, "^ticket 0 is an int; pass what claim"),
        (lambda ticket: ticket, lambda gradients: None, "^gradient is a NoneType; pass one tensor or None for each"),
    ],
)
def test_what_is_no_ticket_and_no_gradient_is_refused(ticket: Any, gradient: Any, message: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (claimed := worker.claim()) is not None:
            replica = worker.read(claimed)
            loss = replica(torch.ones(2, 8)).square().mean()
            worker.commit(ticket(claimed), gradient(torch.autograd.grad(loss, list(replica.parameters()))))

    with pytest.raises(hogwild.ArgumentError, match=message):
        hogwild.launch(work, problems.mlp(), optimizer=SGD, updates=4, update="ordered", kind="threads", workers=1)


def test_what_is_read_is_a_ticket() -> None:
    with pytest.raises(hogwild.ArgumentError, match="^ticket 0 is an int"):
        hogwild.launch(lambda worker: worker.read(0), problems.mlp(), optimizer=SGD, updates=4, kind="threads")
