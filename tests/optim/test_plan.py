"""An optimizer's state is shared by all workers, and stays whole; what cannot be shared is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import problems
import pytest
import torch
from held_locks import alone
from optimizers import OPTIMIZERS, UPDATES, everything, everything_loss, plain, trained
from torch import Tensor, nn
from torch.optim import Optimizer
from traits import KINDS, ONE_OF_EACH

import hogwild
from hogwild.optim.factory import make_optimizer
from hogwild.optim.plan import OptimizerPlan
from hogwild.testing import planted


class Counting(Optimizer):
    """An optimizer of a user's own, which keeps Python numbers, a bool, and a tensor of another shape as state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, decay=1.0, odd=False, history=torch.zeros(3, dtype=torch.float64))
                assert type(state["step"]) is int
                assert type(state["odd"]) is bool
                state["step"] += 1
                state["decay"] *= 0.95
                state["odd"] = not state["odd"]
                state["history"][state["step"] % 3] = float(p.grad.abs().sum())
                rate = group["lr"] * state["decay"] / (1 + float(state["history"].mean()))
                p.add_(p.grad, alpha=-rate * (2 if state["odd"] else 1))


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_an_optimizer_of_ones_own_with_python_numbers_as_state(update):
    assert trained(problems.mlp(), Counting, update=update) == plain(problems.mlp(), Counting)
    expected = plain(everything(), Counting, everything_loss)
    assert trained(everything(), Counting, loss=everything_loss, update=update) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_python_numbers_as_state_are_shared_by_the_workers(kind):
    one = problems.train(optimizer=Counting, update="ordered", workers=1, updates=UPDATES).digest
    assert problems.train(optimizer=Counting, update="ordered", workers=2, kind=kind, updates=UPDATES).digest == one


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_workers_step_one_optimizer(name):
    optimizer = OPTIMIZERS[name]
    runs = [
        problems.train(
            everything(name), loss=everything_loss, optimizer=optimizer, update="ordered", workers=workers, updates=12
        )
        for workers in (1, 2)
    ]
    assert runs[0].digest == runs[1].digest
    assert len(set(runs[1].journal["version"])) == 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["locked", "snapshot"])
def test_under_a_lock_no_step_of_two_workers_is_lost(kind, update):
    steps = {"updates": 200, "update": update, "kind": kind, "workers": 2, "batch_size": 4}
    model = nn.Linear(8, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model.weight.sum()  # its gradient is one, whatever was read

    with planted(alone):
        run = problems.train(model, loss=loss, optimizer=partial(torch.optim.SGD, lr=1.0), **steps)
    assert torch.equal(model.weight, torch.full((1, 8), -200.0))
    assert run.failures == ()


def loaded_state(parameters: list[nn.Parameter], *, which: int) -> dict[str, Any]:
    """The state dict of an Adam that has stepped the first `which` parameters five times."""
    adam = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(5):
        for parameter in parameters[:which]:
            parameter.grad = torch.full_like(parameter, 0.1)
        adam.step()
    return adam.state_dict()


@pytest.mark.parametrize("which", [4, 1])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_factory_that_restores_a_saved_state(which, update):
    saved = loaded_state(list(problems.mlp().parameters()), which=which)

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        adam = torch.optim.Adam(named, lr=0.01)
        names = [{**group, "param_names": [n for n, _ in named]} for group in saved["param_groups"]]
        adam.load_state_dict({"state": saved["state"], "param_groups": names})
        return adam

    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), optimizer)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_restored_state_with_nothing_in_it_is_none(update):
    """Older versions of torch saved it so where there was no momentum."""

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        sgd = OPTIMIZERS["momentum"](named)
        for _, parameter in named[:2]:
            sgd.state[parameter]["momentum_buffer"] = None
        return sgd

    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), OPTIMIZERS["momentum"])


def test_a_restored_state_that_the_step_would_not_carry_on_is_left_to_torch():
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        sgd = OPTIMIZERS["sgd"](named)
        sgd.state[named[0][1]]["momentum_buffer"] = torch.ones_like(named[0][1])
        return sgd

    assert plan_of(optimizer).written is None
    assert plan_of(OPTIMIZERS["sgd"]).written is not None


def test_step_counts_that_differ_are_seen_whatever_their_shape():
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        adam = OPTIMIZERS["adam"](named)
        for count, (_, parameter) in enumerate(named):
            like = torch.full_like(parameter, 0.1)
            adam.state[parameter] = {"step": torch.tensor([3.0 + 100 * count]), "exp_avg": like, "exp_avg_sq": like**2}
        return adam

    assert trained(problems.mlp(), optimizer) == plain(problems.mlp(), optimizer)


class Late(Optimizer):
    """Begins to keep state at its third step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    if state["step"] >= 3:
                        state.setdefault("slow", torch.zeros_like(p)).lerp_(p, 0.5)
                    p.add_(p.grad, alpha=-group["lr"]).add_(state.get("slow", 0 * p), alpha=-0.01)


def test_state_that_comes_after_the_first_step_is_refused_by_name():
    """torch's own create theirs at the first step; of this one's, what came later would be lost between workers."""
    with pytest.raises(hogwild.HogwildError, match=r"Late .*slow"):
        trained(problems.mlp(), Late)


class OfItsOwn(Optimizer):
    """Keeps its count of steps in itself, where no other worker sees it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / self.steps)


def test_state_outside_the_state_is_refused_by_name():
    with pytest.raises(hogwild.ArgumentError, match=r"OfItsOwn keeps state.*steps"):
        problems.train(optimizer=OfItsOwn)


def test_state_in_a_parameter_group_is_refused_by_name():
    class InItsGroup(Counting):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step()
            for group in self.param_groups:
                group["seen"] = group.get("seen", 0) + 1

    with pytest.raises(hogwild.ArgumentError, match=r"InItsGroup keeps state in its parameter groups.*seen"):
        problems.train(optimizer=InItsGroup)


def plan_of(optimizer: Callable[..., Optimizer]) -> OptimizerPlan:
    from hogwild.shared.layout import Layout

    named = list(problems.mlp().named_parameters())
    made = make_optimizer(optimizer, named)
    return OptimizerPlan.of(made, [p for _, p in named], Layout.of(named), frozenset())


def test_elementwise_optimizers_and_no_others_step_on_the_flat_tensor():
    flat = {name for name, optimizer in OPTIMIZERS.items() if plan_of(optimizer).form.flat}
    assert set(OPTIMIZERS) - flat == {"adafactor", "sgd in one call", "fused adam"}
    assert not plan_of(Counting).form.flat


def test_making_the_plan_moves_neither_the_model_nor_its_gradients():
    model = problems.mlp()
    problems.cross_entropy(model, problems.data()).backward()
    before, gradients = hogwild.digest(model), [p.grad.clone() for p in model.parameters()]
    problems.train(model, optimizer=OPTIMIZERS["adam"], updates=1, lr_schedule=lambda number: 0.0)
    assert hogwild.digest(model) == before
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


class Modes(hogwild.rules.Hogwild):
    """Notes whether grad mode was on where a rule is asked."""

    seen: ClassVar[set[tuple[str, bool]]] = set()

    def ready(self, update: int) -> bool:
        self.seen.add(("ready", torch.is_grad_enabled()))
        return super().ready(update)

    def gradient(self, *arguments: Any) -> Any:
        self.seen.add(("gradient", torch.is_grad_enabled()))
        return super().gradient(*arguments)

    def commit(self, *arguments: Any) -> bool:
        self.seen.add(("commit", torch.is_grad_enabled()))
        return super().commit(*arguments)


def test_a_rule_is_asked_without_grad_mode_and_computes_its_gradient_with_it():
    Modes.seen.clear()
    problems.train(update=Modes(), workers=1, updates=3)
    assert Modes.seen == {("ready", False), ("gradient", True), ("commit", False)}


def test_grad_mode_comes_back_after_a_commit_that_raises():
    modes = []

    def work(worker: hogwild.Worker) -> None:
        ticket = worker.claim()
        replica = worker.read(ticket)
        with pytest.raises(hogwild.NonFiniteError):
            worker.commit(ticket, [torch.full_like(parameter, torch.nan) for parameter in replica.parameters()])
        modes.append(torch.is_grad_enabled())
        worker.commit(ticket, [*map(torch.zeros_like, worker.read(ticket).parameters())])

    hogwild.launch(work, problems.mlp(), optimizer=OPTIMIZERS["sgd"], updates=1, workers=1, kind="threads")
    assert modes == [True]
