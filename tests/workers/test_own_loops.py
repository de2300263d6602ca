"""Mistakes in a loop of one's own: a ticket that is not its own, a gradient of another form, a version written to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from traits import KINDS, OTHER_BITS, SAME_BITS, VERSIONED

import hogwild
from hogwild.rules.registry import NAMES

EVERY = pytest.mark.parametrize("update", NAMES)
INPUT, TARGET = torch.ones(4, 3), torch.zeros(4, 2)


def launched(work: Callable[[Any], None], model: nn.Module | None = None, **settings: Any) -> hogwild.Run:
    defaults = {"updates": 6, "update": "ordered", "kind": "threads", "workers": 1}
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return hogwild.launch(work, model or nn.Linear(3, 2), optimizer=optimizer, **defaults | settings)


def gradients(replica: nn.Module) -> tuple[list[Tensor], float]:
    loss = nn.functional.mse_loss(replica(INPUT), TARGET)
    return [*torch.autograd.grad(loss, [p for p in replica.parameters() if p.requires_grad])], loss.item()


# --- tickets


def commits_twice(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        own = gradients(worker.read(ticket))
        worker.commit(ticket, *own)
        worker.commit(ticket, *own)


def commits_the_one_before(worker: hogwild.Worker) -> None:
    before = None
    while (ticket := worker.claim()) is not None:
        worker.commit(before or ticket, *gradients(worker.read(ticket)))
        before = ticket


def commits_unread(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.replica))


def reads_another(worker: hogwild.Worker) -> None:
    before = None
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.read(before or ticket)))
        before = ticket


@EVERY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("work", "message"),
    [
        (commits_twice, r"ticket 0 was committed by worker 0, which has none; commit what claim\(\) gave, once"),
        (commits_the_one_before, r"ticket 0 was committed by worker 0, which has ticket 1"),
        (commits_unread, r"ticket 0 was committed before it was read"),
        (reads_another, r"ticket 1 was committed after ticket 0 was read"),
    ],
)
def test_a_ticket_is_committed_once_by_who_has_it_and_has_read_it(
    work: Callable[[Any], None], message: str, update: str, kind: str
) -> None:
    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(work, update=update, kind=kind)


# --- gradients in a list

FORMS = {
    "a number for a matrix": (lambda p: torch.ones(()), r"the gradient of weight is torch\.float32 of shape \[\]"),
    "transposed": (lambda p: torch.ones(p.shape[::-1]), r"gradient of weight is torch\.float32 of shape \[3, 2\]"),
    "another dtype": (lambda p: torch.ones_like(p, dtype=torch.float64), r"weight is torch\.float64 of shape \[2, 3\]"),
    "complex": (lambda p: torch.ones_like(p, dtype=torch.complex64), r"weight is torch\.complex64 of shape \[2, 3\]"),
    "no tensor": (lambda p: 1.0, r"the gradient of weight is a float; a tensor or None works"),
}


@EVERY
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_of_another_form_than_its_parameter_is_refused(form: str, update: str) -> None:
    make, message = FORMS[form]

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, [make(p) for p in worker.read(ticket).parameters()], 0.0)

    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(work, update=update)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_there_is_one_gradient_for_each_trained_parameter(number: int) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            own, loss = gradients(worker.read(ticket))
            worker.commit(ticket, [*own, own[0]][:number], loss)

    with pytest.raises(hogwild.ArgumentError, match=f"gradients given: {number}, trained parameters: 2"):
        launched(work)


# --- what the replica shows


def sharpness_aware(worker: hogwild.Worker) -> None:
    """Perturbs the replica in place and puts it back, as is done where it is one's own."""
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        steps, _ = gradients(replica)
        with torch.no_grad():
            for parameter, step in zip(replica.parameters(), steps, strict=True):
                parameter.add_(step, alpha=0.05)
        own = gradients(replica)
        with torch.no_grad():
            for parameter, step in zip(replica.parameters(), steps, strict=True):
                parameter.sub_(step, alpha=0.05)
        worker.commit(ticket, *own)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_a_loop_does_not_write_to_a_version(update: str, kind: str) -> None:
    message = rf"weight, bias of the replica was written to before the commit, and under {update} others read"
    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(sharpness_aware, update=update, kind=kind)


def test_rules_in_place_have_no_version_to_write_to() -> None:
    assert launched(sharpness_aware, update="hogwild").updates == 6


def stepping(worker: hogwild.Worker) -> None:
    """Steps itself as well, as a loop does that is ported as it was."""
    optimizer = None
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        optimizer = optimizer or torch.optim.SGD(replica.parameters(), lr=0.01)
        own = gradients(replica)
        for parameter, gradient in zip(replica.parameters(), own[0], strict=True):
            parameter.grad = gradient
        optimizer.step()
        worker.commit(ticket, *own)


@pytest.mark.parametrize("update", sorted({*NAMES} - {*VERSIONED}))
def test_a_step_in_the_loop_is_told_once(update, caplog):
    launched(stepping, update=update, workers=2)
    told = f"weight, bias of the replica was written to before the commit: under {update} that changes the shared model"
    assert caplog.text.count(told) == len(caplog.records) == 1


def renormalised(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = replica(torch.arange(4)).square().mean()
        worker.commit(ticket, torch.autograd.grad(loss, [*replica.parameters()]), loss)


def test_what_a_forward_pass_renormalises_is_not(caplog):
    launched(renormalised, nn.Embedding(4, 3, max_norm=0.5), update="hogwild")
    assert not caplog.records


class Target(nn.Module):
    """A target network that its own forward pass moves."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
                target.lerp_(online, 0.1)
        return self.online(x) - self.target(x)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_does_not_write_to_what_is_frozen(update: str, kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, *gradients(worker.read(ticket)))

    with pytest.raises(hogwild.ArgumentError, match=r"target\.weight, target\.bias of the replica was written to"):
        launched(work, Target(), update=update, kind=kind)


# --- the same in a loss


def trained(model: nn.Module, loss: Callable[[nn.Module, Any], Any], **settings: Any) -> hogwild.Run:
    data = torch.randn(32, 3), torch.randn(32, 2)
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return hogwild.train(model, data, loss, optimizer=optimizer, **{"batch_size": 4, "updates": 8} | settings)


def squared(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


@EVERY
def test_a_loss_does_not_write_to_what_is_frozen_and_trying_it_changes_nothing(update: str) -> None:
    model = Target()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = r"the loss writes to target\.weight, target\.bias while it is computed, which is not trained, .*buffers"
    with pytest.raises(hogwild.ArgumentError, match=message):
        trained(model, squared, update=update)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("update", VERSIONED)
@pytest.mark.parametrize("how", ["by the tensor", "by its data"])
def test_a_loss_does_not_write_to_a_version_and_trying_it_changes_nothing(how: str, update: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            (model.weight if how == "by the tensor" else model.weight.data).mul_(0.9)
        return squared(model, batch)

    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(hogwild.ArgumentError, match=r"the loss writes to weight while it is computed"):
        trained(model, loss, update=update)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_nor_does_it_later(update: str, kind: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 5:
            with torch.no_grad():
                model.weight.mul_(0.9)
        return squared(model, batch)

    with pytest.raises(hogwild.ArgumentError, match=r"weight of the replica was written to before the commit"):
        trained(nn.Linear(3, 2), loss, update=update, kind=kind, recheck=0)


# --- layers that one way of differentiating does not reach


class Checkpointed(nn.Module):
    """Its first layers are computed again in the backward pass, as torch did once by default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=True)
        return self.last(inner)


@pytest.mark.parametrize("update", [*SAME_BITS, "locked"])
def test_layers_that_would_get_no_gradient_are_named(update: str) -> None:
    message = r"no gradient to first\.0\.weight, first\.0\.bias, and backward\(\) does, .*use_reentrant.*'backward'"
    with pytest.raises(hogwild.ArgumentError, match=message):
        trained(Checkpointed(), squared, update=update)


@EVERY
def test_by_backward_they_are_trained(update: str) -> None:
    model = Checkpointed()
    before = model.first[0].weight.clone()
    trained(model, squared, update=update, gradient=None if update == "racing" else "backward")
    assert not torch.equal(model.first[0].weight, before)


@pytest.mark.parametrize("update", OTHER_BITS)
def test_a_branch_that_is_not_taken_has_no_gradient_by_either(update: str) -> None:
    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) if torch.rand(()) < 0.5 else self.other(x)

    assert trained(Branched(), squared, update=update, gradient=None if update == "racing" else "grad").updates == 8


# --- loops that do nothing


def yields(worker: hogwild.Worker) -> Any:
    while (ticket := worker.claim()) is not None:
        yield worker.commit(ticket, *gradients(worker.read(ticket)))


async def is_async(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.read(ticket)))


@pytest.mark.parametrize(
    ("work", "why"), [(yields, "work yields"), (is_async, "work is async"), ("w", "work is a str")]
)
def test_a_loop_that_would_do_nothing_is_refused(work: Any, why: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=why):
        launched(work)


def asks_whether_the_ticket_is_true(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.commit(ticket, *gradients(worker.read(ticket)))


def test_a_ticket_is_true_that_of_number_0_too() -> None:
    assert launched(asks_whether_the_ticket_is_true).updates == 6


def test_a_loop_with_other_arguments_is_refused_before_the_run() -> None:
    def work(worker: hogwild.Worker, gamma: float, *, steps: int = 1) -> None:
        asks_whether_the_ticket_is_true(worker)

    with pytest.raises(
        hogwild.ArgumentError, match=r"called as work\(worker\), .*missing a required argument: 'gamma'"
    ):
        launched(work)
    assert launched(partial(work, gamma=0.9)).updates == 6
    assert launched(wraps(work)(lambda worker: work(worker, 0.9))).updates == 6


def commits_the_loss(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.commit(ticket, nn.functional.mse_loss(worker.read(ticket)(INPUT), TARGET))  # type: ignore[arg-type]


def test_a_loss_in_the_place_of_the_gradients_is_named() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"gradient is one tensor of shape \[\]; pass a list"):
        launched(commits_the_loss)


def commits_nothing(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.read(ticket)
        worker.commit(ticket)


def test_a_gradient_that_is_left_out_ends_the_run_at_once() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"^gradient is a NoneType; .*, as commit\(ticket, torch\.auto"):
        launched(commits_nothing)


def test_an_optimizer_without_an_argument_is_told_which_it_gets() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"called with list\(model\.named_parameters\(\)\)"):
        hogwild.launch(ends_early, nn.Linear(3, 2), optimizer=lambda: None, updates=1)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_ends_early_is_told_how_long_one_goes_on(kind: str) -> None:
    with pytest.raises(
        hogwild.WorkerError, match=r"before the work was done; a loop goes on until claim\(\) gives None"
    ):
        launched(ends_early, kind=kind, max_restarts=1)


def ends_early(worker: hogwild.Worker) -> None:
    ticket = worker.claim()
    assert ticket is not None
    worker.commit(ticket, *gradients(worker.read(ticket)))


# --- numbers that are tensors with a graph; torch warns where one is made a number, and a warning here is an error


def tells_tensors(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = nn.functional.mse_loss(replica(INPUT), TARGET)
        worker.info.log(told=2 * loss)
        worker.commit(ticket, torch.autograd.grad(loss, [*replica.parameters()], retain_graph=True), loss)


def logs_tensors(model: nn.Module, batch: Tensor) -> Tensor:
    loss = model(batch).square().mean()
    info = hogwild.worker_info()
    assert info is not None
    info.log(told=2 * loss)
    return loss


def test_a_loss_that_is_told_and_logged_may_have_a_graph() -> None:
    own = launched(tells_tensors)
    trained = hogwild.train(
        nn.Linear(3, 2),
        INPUT,
        logs_tensors,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        batch_size=2,
        epochs=3,
        kind="threads",
        update="ordered",
    )
    for run in (own, trained):
        assert [row["told"] for row in run.logged] == [2 * loss for loss in run.journal["loss"]]
        assert len(run.logged) == len(run.journal) > 0
