"""Stale gradients are compensated: the bits are those of the reference, whoever trains, dies, resumes or replays."""

from __future__ import annotations

import json
import warnings
from functools import partial
from typing import Any

import problems
import pytest
import torch
from optimizers import OPTIMIZERS, everything, everything_loss
from torch import nn
from traits import KINDS, hooks_of

import hogwild
from hogwild.optim.compensation import Compensation
from hogwild.rules.ordered import Ordered
from hogwild.rules.registry import refuse_idle
from hogwild.shared.optimizer_state import PARAMETER
from hogwild.shared.shards import cut_shards
from hogwild.testing import Fault, PlantedFault, RandomDelays, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
TAU, UPDATES = 3, 24
BOTH = pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
FIXED: dict[str, Any] = {"update": "ordered", "staleness": TAU, "compensation": "auto", "updates": UPDATES}


@pytest.fixture(params=["whole", "in shards"])
def _shards(request, monkeypatch):
    if request.param == "in shards":
        monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=40))


class Lays(Ordered):
    """Every gradient waits, also where its turn has come, so that a version is made by anyone."""

    def _apply_at_once(self, ticket: hogwild.Ticket, gradient: Any) -> bool:
        return False


def train(**arguments: Any) -> hogwild.Run:
    return problems.train(arguments.pop("model", problems.conv_bn)(), **{**FIXED, **arguments})


def by_reference(**arguments: Any) -> str:
    model = arguments.pop("model", problems.conv_bn)()
    problems.train_serially(model, **{**FIXED, **arguments})
    return hogwild.digest(model)


# --- bits


@BOTH
@pytest.mark.usefixtures("_shards")
@pytest.mark.parametrize("kind", KINDS)
def test_one_digest_at_any_number_of_workers(kind, optimizer):
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


@BOTH
@pytest.mark.usefixtures("_shards")
@pytest.mark.parametrize("hook", hooks_of("ordered"))
def test_a_death_anywhere_changes_nothing(hook, optimizer):
    arguments = {"optimizer": OPTIMIZERS[optimizer]}
    expected = by_reference(**arguments)
    for update in ("ordered", Lays(TAU, "auto")):
        fault = PlantedFault(Fault.KILL, hook, 9)
        with planted(fault):
            run = train(workers=2, kind="processes", **arguments | {"update": update})
        assert fault.fired and len(run.failures) == 1
        assert run.digest == expected


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


def test_groups_are_stretched_each_by_itself():
    def two_groups(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        biases = [parameter for name, parameter in named if name.endswith("bias")]
        others = [parameter for name, parameter in named if not name.endswith("bias")]
        groups = [{"params": others, "momentum": 0.95, "weight_decay": 0.01}, {"params": biases, "lr": 0.02}]
        return torch.optim.SGD(groups, lr=0.05)

    run = train(workers=2, optimizer=two_groups)
    assert run.digest == by_reference(optimizer=two_groups)
    assert run.compensation == (
        "momentum 0.95 → 0.9875",
        "lr 0.05 → 0.00625",
        "momentum 0 → 0.975",
        "lr 0.02 → 0.0005",
    )


# --- what is shown, saved and gone on with


def test_what_is_evaluated_sealed_and_given_back_is_the_model_not_what_is_predicted(tmp_path):
    seen = {}

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen[len(seen) + 1] = hogwild.digest(model)
        return {}

    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp}
    run = train(workers=2, evaluate=evaluate, evaluate_every=1, **arguments)
    for version in (1, 5, UPDATES):
        assert seen[version] == by_reference(**arguments | {"updates": version})
    assert run.digest == seen[UPDATES]
    assert run.seals[5] == train(**arguments | {"updates": 5}).seals[5]


@BOTH
def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not(optimizer, tmp_path):
    arguments = {"optimizer": OPTIMIZERS[optimizer], "evaluate_every": 7}
    interrupts = problems.interrupting(2)
    with pytest.raises(KeyboardInterrupt):
        train(workers=2, out=tmp_path, evaluate=interrupts, stop=lambda progress: False, **arguments)
    assert 0 < json.loads((tmp_path / "run.json").read_text())["updates"] < UPDATES
    with pytest.raises(hogwild.ArgumentError, match="compensation"):
        train(out=tmp_path, resume=tmp_path, **arguments | {"compensation": "none"})
    run = train(workers=4, out=tmp_path, resume=tmp_path, **arguments)
    assert run.digest == by_reference(optimizer=arguments["optimizer"])
    assert hogwild.load_run(tmp_path).compensation == run.compensation != ()


def test_another_learning_rate_is_scaled_as_the_first_was(tmp_path):
    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp}
    interrupts = problems.interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=interrupts, evaluate_every=9, stop=lambda progress: False, **arguments)
    at = json.loads((tmp_path / "run.json").read_text())["updates"]
    rate = problems.MOMENTUM.keywords["lr"]
    run = train(out=tmp_path, resume=tmp_path, change={"lr": rate / 2}, evaluate_every=9, **arguments)
    assert run.digest == by_reference(**arguments, lr_schedule=lambda update: 0.5 if update >= at else 1.0)


@BOTH
def test_a_run_is_replayed_to_the_bit(optimizer, tmp_path):
    arguments = {"optimizer": OPTIMIZERS[optimizer]}
    run = train(workers=3, out=tmp_path, **arguments)
    again = hogwild.replay(
        tmp_path, model=problems.conv_bn(), data=problems.data(), loss=problems.cross_entropy, **arguments
    )
    assert again.equal and again.digest == run.digest and again.compared == UPDATES + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_ones_own(kind):
    arguments = {"optimizer": problems.MOMENTUM}
    run = hogwild.launch(own_loop, problems.mlp(), workers=2, kind=kind, **FIXED, **arguments)
    assert run.compensation
    assert run.digest == by_reference(model=problems.mlp, **arguments)


def own_loop(worker: hogwild.Worker) -> None:
    schedule, (x, y) = hogwild.Schedule(200, 16), problems.data()
    while (ticket := worker.claim()) is not None:
        replica, rows = worker.read(ticket), schedule.indices(ticket.batch)
        loss = problems.cross_entropy(replica, (x[rows], y[rows]))
        worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())


# --- what it is for, and what it costs


@pytest.mark.parametrize(
    "optimizer",
    [
        "dampening",
        "amsgrad",
        "adagrad",
        "rmsprop",
        "adafactor",
        "sgd in one call",
        "fused adam",
        "maximizing",
        "lr as a tensor",
    ],
)
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
def test_who_is_not_compensated_is_told_so():
    with pytest.warns(UserWarning, match="staleness 3 of Adagrad is not compensated"):
        train(optimizer=OPTIMIZERS["adagrad"], model=problems.mlp)
    with pytest.warns(UserWarning, match="Adam and its momentum may not learn; compensation='auto' makes up"):
        train(optimizer=OPTIMIZERS["adam"], model=problems.mlp, compensation="none")
    with pytest.warns(UserWarning, match="NAdam and its momentum may not learn; lower the momentum"):
        train(optimizer=OPTIMIZERS["nadam"], model=problems.mlp, compensation="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer=OPTIMIZERS["adam"], model=problems.mlp)


def test_what_an_optimizer_is_given():
    named = [nn.Parameter(torch.zeros(1))]
    sgd = Compensation.of(torch.optim.SGD(named, lr=0.1, momentum=0.9), 3)
    assert sgd is not None and sgd.predicts
    assert sgd.changes == ("momentum 0.9 → 0.975", "lr 0.1 → 0.0125")
    adam = Compensation.of(torch.optim.Adam(named, lr=0.1, weight_decay=0.5), 3)
    assert adam is not None and not adam.predicts
    assert adam.changes == ("betas (0.9, 0.999) → (0.975, 0.999)", "lr 0.1 → 0.05")
    adamw = Compensation.of(torch.optim.AdamW(named, lr=0.1, weight_decay=0.5), 3)
    assert adamw is not None
    assert adamw.changes == (
        "betas (0.9, 0.999) → (0.975, 0.999)",
        "weight_decay 0.5 → 1",
        "lr 0.1 → 0.05",
    )
    assert Compensation.of(torch.optim.SGD(named, lr=0.1), 0) is None
    assert Compensation.of(torch.optim.SGD(named, lr=0.1, momentum=1.0), 3) is None, "which forgets nothing"


@pytest.mark.parametrize(
    ("momentum", "staleness", "less"), [(0.9, 3, 2), (0.99, 3, 2), (0.9, 15, 4), (0.0, 7, 1), (0.0, 39, 2), (0.5, 4, 1)]
)
def test_a_constant_gradient_moves_the_weights_by_so_much_less_in_the_end(momentum, staleness, less):
    """By η / (1 − μ), divided by √(τ + 1) where the memory is τ + 1 times as long, by less where it was short."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=momentum)
    found = Compensation.of(sgd, staleness)
    assert found is not None
    found.apply(sgd)
    (group,) = sgd.param_groups
    assert group["lr"] / (1 - group["momentum"]) == pytest.approx(0.1 / (1 - momentum) / less)


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


def test_rules_without_a_set_staleness_refuse_it_on_the_command_line():
    with pytest.raises(hogwild.ArgumentError, match="only 'ordered' has it"):
        refuse_idle({"compensation": "auto"}, "hogwild")
    with pytest.raises(hogwild.ArgumentError, match="'none', 'auto' are"):
        train(compensation="always")
    with pytest.raises(hogwild.ArgumentError, match="none, auto are"):
        Ordered(3, "always")
