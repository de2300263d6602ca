"""Stale gradients are compensated: the bits are those of the reference, whoever trains, dies, resumes or replays."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import problems
import pytest
import torch
from optimizers import OPTIMIZERS, everything, everything_loss
from sharing import Lays
from stale import BOTH, FIXED, TAU, UPDATES, by_reference, train
from torch import nn
from traits import KINDS, hooks_of

import hogwild
from hogwild.rules.ordered import Ordered
from hogwild.rules.registry import refuse_idle
from hogwild.shared.optimizer_state import PARAMETER
from hogwild.shared.shards import cut_shards
from hogwild.testing import Fault, PlantedFault, RandomDelays, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness")


@pytest.fixture
def _shards(request, monkeypatch):
    if request.param == "in shards":
        monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=40))


# --- bits


@pytest.mark.parametrize(
    ("_shards", "kind", "optimizer"),
    [
        ("whole", "threads", "momentum"),
        ("whole", "processes", "adamw"),
        ("in shards", "threads", "adamw"),
        ("in shards", "processes", "momentum"),
    ],
    indirect=["_shards"],
)
def test_one_digest_at_any_number_of_workers(_shards, kind, optimizer):
    """Each two of shards, kind and optimizer: a worker steps what it is given, whatever it runs as."""
    arguments = {"optimizer": OPTIMIZERS[optimizer], "clip_grad_norm": 0.5, "lr_schedule": slower}
    expected = by_reference(**arguments)
    for workers in (1, 2, 4):
        assert train(workers=workers, kind=kind, **arguments).digest == expected
    assert train(workers=3, kind=kind, **arguments | {"update": Lays(TAU, "auto")}).digest == expected


def slower(update: int) -> float:
    return 1 / (1 + update / 10)


@BOTH
@pytest.mark.parametrize("update", ["ordered", Lays(TAU, "auto")], ids=["at once", "waiting"])
def test_delays_at_every_hook(optimizer, update):
    arguments = {"optimizer": OPTIMIZERS[optimizer]}
    expected = by_reference(**arguments)
    for seed in range(3):
        with planted(RandomDelays(seed, share=0.5)):
            assert train(workers=4, recheck=0.2, **arguments | {"update": update}).digest == expected


@pytest.fixture(scope="module")
def undisturbed():
    return {optimizer: by_reference(optimizer=OPTIMIZERS[optimizer]) for optimizer in ("momentum", "adamw")}


@pytest.mark.parametrize(
    ("hook", "_shards", "optimizer"),
    [
        (hook, shards, ("momentum", "adamw")[(number + (shards == "whole")) % 2])
        for number, hook in enumerate(hooks_of("ordered"))
        for shards in ("whole", "in shards")
    ],
    indirect=["_shards"],
)
def test_a_death_anywhere_changes_nothing(hook, _shards, optimizer, undisturbed):
    """Of each hook with each of shards and with each optimizer: where a worker dies hangs on no optimizer."""
    for update in ("ordered", Lays(TAU, "auto")):
        fault = PlantedFault(Fault.KILL, hook, 9)
        with planted(fault):
            run = train(workers=2, kind="processes", update=update, optimizer=OPTIMIZERS[optimizer])
        assert fault.fired and len(run.failures) == 1
        assert run.digest == undisturbed[optimizer]


@BOTH
def test_an_update_that_is_left_out_moves_nothing_and_predicts_nothing(optimizer):
    """What version 8 is read as is version 8 itself, since it is version 7."""
    read = {}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        update = hogwild.worker_info().update
        read[update] = [parameter.detach().clone() for parameter in model.parameters()]
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if update == 7 else value

    def evaluate(model: nn.Module) -> dict[str, float]:
        kept.append([parameter.clone() for parameter in model.parameters()])
        return {}

    kept: list[list[torch.Tensor]] = []
    arguments = {"loss": loss, "on_nonfinite": "skip", "optimizer": OPTIMIZERS[optimizer], "model": problems.mlp}
    digests = {train(workers=workers, **arguments).digest for workers in (1, 2, 4)}
    digests.add(train(**arguments, evaluate=evaluate, evaluate_every=1).digest)
    assert len(digests) == 1
    seventh, eighth = kept[6], kept[7]  # the first is of version 1
    assert all(map(torch.equal, seventh, eighth))
    assert all(map(torch.equal, read[8 + TAU], eighth))
    ahead = [torch.equal(a, b) for a, b in zip(read[7 + TAU], seventh, strict=True)]
    assert not any(ahead) if optimizer == "momentum" else all(ahead)


@BOTH
def test_parameters_that_get_no_gradient(optimizer):
    arguments = {"optimizer": OPTIMIZERS[optimizer], "model": everything, "loss": everything_loss}
    expected = by_reference(**arguments)
    for update in ("ordered", Lays(TAU, "auto")):
        assert train(workers=3, **arguments | {"update": update}).digest == expected


def from_zero() -> nn.Module:
    """No layer is at right angles to its gradient: the last is nothing."""
    model = problems.mlp()
    for parameter in model[2].parameters():
        nn.init.zeros_(parameter)
    return model


class Tied(nn.Module):
    """One matrix in two layers, and one between them that goes into a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.norm = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.LayerNorm(8)
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.inner(torch.tanh(self.first(x))))))[:, :3]


@pytest.mark.parametrize("build", [from_zero, Tied])
def test_what_is_normalised_is_the_same_to_the_reference(build):
    settings = {"optimizer": partial(torch.optim.SGD, lr=0.5), "model": build}
    run = train(workers=2, kind="threads", **settings)
    assert run.compensation and run.digest == by_reference(**settings)


def test_groups_are_stretched_each_by_itself():
    def two_groups(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        biases = [parameter for name, parameter in named if name.endswith("bias")]
        others = [parameter for name, parameter in named if not name.endswith("bias")]
        groups = [{"params": others, "momentum": 0.95, "weight_decay": 0.01}, {"params": biases, "lr": 0.02}]
        return torch.optim.SGD(groups, lr=0.05)

    run = train(workers=2, optimizer=two_groups, model=problems.mlp)
    assert run.digest == by_reference(optimizer=two_groups, model=problems.mlp)
    λ = run.curvature
    assert λ is not None
    rate = 1 / (3 * λ * (TAU + 1) ** 2)
    assert run.compensation == (
        f"momentum 0.95 → 0.9875 … {1 - rate / 0.05 / 20:.6g}, from update 400 on",
        f"lr 0.05 → {rate:.6g}, for a curvature of {λ:.3g}",
        "momentum 0 → 0.975",
        "lr 0.02 → 0.0005",
    )


def test_the_momentum_grows_with_the_updates():
    """Over twenty updates at first, and from update 100 on over a fifth of those so far."""
    arguments = {"staleness": 1, "updates": 140, "optimizer": problems.MOMENTUM, "model": problems.mlp}
    run = train(workers=2, **arguments)
    assert run.digest == by_reference(**arguments)
    (words, _) = run.compensation
    assert words.endswith("from update 100 on")


@pytest.mark.parametrize("model", [problems.mlp, problems.conv_bn])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_curved_loss_is_stepped_on_less_far(model, workers):
    arguments = {"optimizer": partial(torch.optim.SGD, lr=2.0), "model": model}
    run = train(workers=workers, **arguments)
    assert run.digest == by_reference(**arguments)
    assert run.curvature is not None
    words = run.compensation[-1]
    assert words.startswith("lr 2 → ") and f"for a curvature of {run.curvature:.3g}" in words


@pytest.mark.parametrize("lr", [0.002, 0.05, 5.0])
@pytest.mark.parametrize("method", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_is_slowed_by_what_its_steps_are_for_the_curvature(method, lr):
    """Not at all up to 2, and to lr / (τ + 1) at most."""
    arguments = {"optimizer": partial(method, lr=lr, weight_decay=0.01, eps=1e-4), "model": problems.mlp}
    run = train(workers=2, **arguments)
    assert run.digest == by_reference(**arguments)
    assert run.curvature is not None
    size = lr * run.curvature * (TAU + 1)
    rate = lr * min(1, max((2 / size) ** 0.5, 1 / (TAU + 1)))
    told = f"lr {lr:g} → {rate:.6g}, for a curvature of {run.curvature:.3g}"
    assert (run.compensation[-1] == told) == (size > 2)
    assert {0.002: 0.2 < size < 2, 0.05: 2 < size < 32, 5.0: size > 32}[lr]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_attention_has_a_curvature(optimizer):
    """Though torch's fast attention has no second derivative."""

    def attending() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Unflatten(1, (2, 4)), layer, nn.Flatten(), nn.Linear(8, 3))

    arguments = {"model": attending, "optimizer": OPTIMIZERS[optimizer]}
    run = train(workers=2, **arguments)
    assert run.curvature is not None
    assert run.digest == by_reference(**arguments)


def listed(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    """A loss in two parts."""
    return [problems.cross_entropy(model, batch), problems.cross_entropy(model, batch) / 2]


def one_by_one(model: nn.Module, batch: Any) -> Any:
    """The same, one after the other."""
    yield from listed(model, batch)


def test_the_curvature_is_that_of_whatever_the_loss_returns():
    found = [
        train(loss=loss, optimizer=problems.SGD, model=problems.mlp).curvature
        for loss in (problems.cross_entropy, listed, one_by_one)
    ]
    assert found[1] == pytest.approx(0.75 * found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[1], rel=1e-5)


def once_only(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss whose second derivative raises."""
    return problems.cross_entropy(nn.Sequential(model[:2], model[2], OnceOnly()), batch)


class OnceOnly(nn.Module):
    """The identity, differentiable once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Once.apply(x)


class Once(torch.autograd.Function):
    """The identity."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled(), "nobody knows the second derivative"
        return gradient


def test_a_loss_that_cannot_be_differentiated_twice_is_compensated_without_its_curvature():
    arguments = {"optimizer": partial(torch.optim.SGD, lr=2.0), "model": problems.mlp}
    run = train(loss=once_only, **arguments)
    assert run.curvature is None
    assert run.digest == by_reference(measured=False, **arguments)


# --- what is shown, saved and gone on with


def test_what_is_evaluated_sealed_and_given_back_is_the_model_not_what_is_predicted(tmp_path):
    seen = {}

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen[len(seen) + 1] = hogwild.digest(model)
        return {}

    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp}
    run = train(workers=2, evaluate=evaluate, evaluate_every=1, **arguments)
    for version in (2, 5, UPDATES):
        assert seen[version] == by_reference(**arguments | {"updates": version})
    assert run.digest == seen[UPDATES]
    assert run.seals[5] == train(**arguments | {"updates": 5}).seals[5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_ones_own(kind):
    arguments = {"optimizer": problems.MOMENTUM}
    run = hogwild.launch(own_loop, problems.mlp(), workers=2, kind=kind, **FIXED, **arguments)
    assert run.compensation
    assert run.curvature is None, "nobody knows the loss before it is computed"
    assert run.digest == by_reference(model=problems.mlp, measured=False, **arguments)


def own_loop(worker: hogwild.Worker) -> None:
    schedule, (x, y) = hogwild.Schedule(200, 16), problems.data()
    while (ticket := worker.claim()) is not None:
        replica, rows = worker.read(ticket), schedule.indices(ticket.batch)
        loss = problems.cross_entropy(replica, (x[rows], y[rows]))
        worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())


# --- what it is for, and what it costs


UNSTUDIED = ["dampening", "amsgrad", "adagrad", "rmsprop", "adafactor", "sgd in one call", "fused adam", "maximizing"]


@pytest.mark.parametrize("optimizer", [*UNSTUDIED, "lr as a tensor"])
def test_an_optimizer_that_nobody_has_studied_is_left_as_it_is(optimizer):
    arguments = {"optimizer": OPTIMIZERS[optimizer], "model": problems.mlp}
    run = train(workers=2, **arguments)
    assert run.compensation == ()
    assert run.digest == train(workers=1, **arguments | {"compensation": "none"}).digest


def test_tables_with_gradients_by_row_are_left_as_they_are():
    def table() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.EmbeddingBag(50, 4, sparse=True), nn.Linear(4, 3))

    data = torch.randint(0, 50, (200, 5)), torch.randint(0, 3, (200,))
    arguments = {"model": table, "data": data, "optimizer": problems.SGD}
    run = train(workers=2, **arguments)
    assert run.compensation == ()
    assert run.digest == train(**arguments | {"compensation": "none"}).digest


@pytest.mark.filterwarnings("default:staleness")
@pytest.mark.parametrize(("lr", "told"), [(1.0, True), (0.001, False)])
def test_who_steps_too_far_for_the_curvature_is_told_so(lr, told):
    arguments = {"optimizer": partial(torch.optim.SGD, lr=lr, momentum=0.9), "model": problems.mlp}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = train(compensation="none", staleness=1, updates=500, on_nonfinite="ignore", **arguments)
    (words,) = [str(one.message) for one in seen if "staleness" in str(one.message)] or [""]
    assert bool(words) == told
    assert not told or f"curvature of {run.curvature:.3g}, which times lr {lr:g}" in words


@pytest.mark.filterwarnings("default:staleness")
@pytest.mark.parametrize(("lr", "told"), [(1.0, True), (0.0001, False)])
def test_whose_adam_steps_too_far_for_the_curvature_is_told_so(lr, told):
    arguments = {"optimizer": partial(torch.optim.Adam, lr=lr), "model": problems.conv_bn}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = train(compensation="none", updates=500, **arguments)
    (words,) = [str(one.message) for one in seen if "staleness" in str(one.message)] or [""]
    assert run.curvature is not None
    assert bool(words) == told
    if told:
        assert f"curvature of {run.curvature:.3g} in units of its steps" in words
        assert f"is {lr * run.curvature * (TAU + 1):.2g}" in words


@pytest.mark.filterwarnings("default:staleness")
def test_who_is_not_compensated_is_told_so():
    with pytest.warns(UserWarning, match="Adam and its momentum may not learn; compensation='auto' makes up"):
        train(optimizer=OPTIMIZERS["adam"], model=problems.mlp, compensation="none")
    with pytest.warns(UserWarning, match="NAdam and its momentum may not learn; lower the momentum"):
        train(optimizer=OPTIMIZERS["nadam"], model=problems.mlp, compensation="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer=OPTIMIZERS["adam"], model=problems.mlp)


def test_memory_is_what_is_stated():
    """With SGD the state has a velocity and the parameter itself; with Adam nothing more than without."""
    seen: dict[str, set[str]] = {}

    def looks(hook: Any, seat: Any) -> None:
        seen[name] = set(seat.state.plan.optimizer.cells[0])

    for name in ("sgd", "momentum", "adam"):
        with planted(looks):
            train(optimizer=OPTIMIZERS[name], model=problems.mlp)
    assert seen["sgd"] == seen["momentum"] == {"momentum_buffer", PARAMETER}
    assert seen["adam"] == {"step", "exp_avg", "exp_avg_sq"}


def test_what_is_unknown_or_not_for_the_rule_is_refused():
    with pytest.raises(hogwild.ArgumentError, match="'sync'; 'hogwild', 'locked', 'snapshot' and 'ordered' have it"):
        refuse_idle({"compensation": "auto"}, "sync")
    with pytest.raises(hogwild.ArgumentError, match="'none', 'auto', 'workers' are"):
        train(compensation="always")
    with pytest.raises(hogwild.ArgumentError, match="'auto' and 'none' are"):
        Ordered(3, "always")
