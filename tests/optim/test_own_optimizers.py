"""Optimizers of one's own, and hooks on steps, that do what torch's do not: the plain loop's bits, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import problems
import pytest
import torch
from optimizers import SERIAL, everything, everything_loss, plain, trained
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from traits import ONE_OF_EACH, VERSIONED

import hogwild


class Own(Optimizer):
    """Calls `change(parameter, its state, lr)` for those that have a gradient, or for all."""

    def __init__(
        self, named: Any, change: Callable[[nn.Parameter, dict[str, Any], float], None], *, alls: bool
    ) -> None:
        super().__init__(named, {"lr": 0.05})
        self.change, self.alls = change, alls

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and (self.alls or parameter.grad is not None):
                    self.change(parameter, self.state[parameter], group["lr"])


def assigned(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
    state["mean"] = 0.9 * state["mean"] + parameter.grad if "mean" in state else 1.0 * parameter.grad
    parameter.data = parameter.data - lr * state["mean"]


def decayed(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
    parameter.mul_(1 - lr * 0.1)
    if parameter.grad is not None:
        parameter.sub_(parameter.grad, alpha=lr)


def counted(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
    """Keeps state of a parameter before it has a gradient."""
    state["age"] = state.get("age", torch.zeros(())) + 1
    if parameter.grad is not None:
        parameter.sub_(parameter.grad / state["age"], alpha=lr)


def hooked(hook: Callable[..., None], named: Any) -> Optimizer:
    optimizer = SGD(named, lr=0.01, momentum=0.5)
    optimizer.register_step_post_hook(hook)
    return optimizer


@torch.no_grad()
def clamp(optimizer: Optimizer, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.requires_grad:
            parameter.clamp_(-0.1, 0.1)


def clamp_data(optimizer: Optimizer, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data = parameter.data.clamp(-0.1, 0.1)


MADE = {
    "assigns": partial(Own, change=assigned, alls=False),
    "decays all": partial(Own, change=decayed, alls=True),
    "counts all": partial(Own, change=counted, alls=True),
    "clamps after": partial(hooked, clamp),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_one_worker_leaves_the_bits_of_the_plain_loop(name: str, update: str) -> None:
    expected = plain(everything(), MADE[name], everything_loss)
    assert trained(everything(), MADE[name], loss=everything_loss, update=update) == expected


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_several_workers_leave_the_bits_of_one(name: str, update: str) -> None:
    """What a step writes of a parameter without a gradient lands in the version being made, not in one being read."""
    settings = {"loss": everything_loss, "update": update, "staleness": 2, "micro_batches": 3}
    digests = {
        trained(everything(), MADE[name], **settings | {"workers": workers, "kind": kind})
        for workers, kind in ((1, "threads"), (3, "threads"), (3, "processes"))
    }
    assert len(digests) == 1


@pytest.mark.parametrize("hook", [clamp_data, "in place"], ids=["assigns", "writes"])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_what_is_not_trained_is_not_changed_by_a_step(hook: Any, update: str) -> None:
    @torch.no_grad()
    def in_place(optimizer: Optimizer, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.clamp_(-0.1, 0.1)

    model = everything()
    frozen = model.frozen.weight.clone()
    with pytest.raises(hogwild.ArgumentError, match=r"SGD, or a hook on its steps, changes frozen\.weight"):
        trained(model, partial(hooked, in_place if hook == "in place" else hook), loss=everything_loss, update=update)
    assert torch.equal(model.frozen.weight, frozen)


def test_what_is_not_trained_is_not_changed_by_a_later_step() -> None:
    def late(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        decayed(parameter, state, lr)
        state["steps"] = state.get("steps", 0) + 1
        if state["steps"] == 3:
            frozen[0].mul_(0.5)

    frozen: list[Tensor] = []

    def optimizer(named: Any) -> Optimizer:
        named = list(named)
        frozen[:] = [parameter for _, parameter in named if not parameter.requires_grad]
        return Own(named, late, alls=False)

    with pytest.raises(hogwild.ArgumentError, match=r"changes frozen\.weight, which is not trained"):
        trained(everything(), optimizer, loss=everything_loss, update="ordered")


@pytest.mark.parametrize("update", VERSIONED)
def test_state_that_is_taken_away_again_is_refused(update: str) -> None:
    def every_other(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        if "held" in state:
            parameter.sub_(state.pop("held") + parameter.grad, alpha=lr)
        else:
            state["held"] = parameter.grad.clone()

    with pytest.raises(hogwild.ArgumentError, match=r"Own no longer keeps 'held'"):
        trained(problems.mlp(), partial(Own, change=every_other, alls=False), update=update)


@pytest.mark.parametrize(
    ("first", "later", "told"),
    [
        (torch.arange(4.0), torch.ones(1), r"as torch.float32 \[1\], and kept it as torch.float32 \[4\]"),
        (
            torch.zeros((), dtype=torch.int64),
            torch.tensor(0.5),
            r"as torch.float32 \[\], and kept it as torch.int64 \[\]",
        ),
        (2, 0.5, "keeps 0.5 as 'held', and kept an int after its first step"),
    ],
)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_state_that_takes_another_form_is_refused(update: str, first: Any, later: Any, told: str) -> None:
    """It was broadcast, or cut off."""

    def changing(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        state["steps"] = state.get("steps", 0) + 1
        if state["steps"] in (1, 3):
            state["held"] = first if state["steps"] == 1 else later
        parameter.sub_(parameter.grad, alpha=lr)

    with pytest.raises(hogwild.ArgumentError, match=told):
        trained(problems.mlp(), partial(Own, change=changing, alls=False), update=update)


@pytest.mark.parametrize("when", ["before", "first", "later"])
@pytest.mark.parametrize("number", [2**53 + 1, -(2**62) - 1, 10**400])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_whole_number_that_would_be_rounded_is_refused(update: str, number: int, when: str) -> None:
    def seeded(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        state["steps"] = state.get("steps", 0) + 1
        state["seed"] = number if state["steps"] == (1 if when == "first" else 3) else 1
        parameter.sub_(parameter.grad, alpha=lr)

    def optimizer(named: Any) -> Optimizer:
        made = Own(named, seeded, alls=False)
        for parameter in made.param_groups[0]["params"] if when == "before" else ():
            made.state[parameter] = {"steps": 5, "seed": number}
        return made

    told = rf"Own keeps {number} as 'seed', and workers share numbers as float64, .*keep it as a tensor of int64"
    with pytest.raises(hogwild.ArgumentError, match=told):
        trained(problems.mlp(), optimizer, update=update)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["an int", "a tensor"])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_whole_numbers_of_the_state_are_kept_to_the_last(update: str, as_tensor: bool) -> None:
    def seeded(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        seed = (int(state.get("seed", 1)) * 6364136223846793005 + 1) % 2 ** (62 if as_tensor else 53)
        state["seed"] = torch.tensor(seed) if as_tensor else seed
        parameter.sub_(parameter.grad, alpha=lr * (seed % 1000) / 1000)

    optimizer = partial(Own, change=seeded, alls=False)
    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), optimizer)


class Rateless(Optimizer):
    """Steps by a hundredth of the gradient, and has no learning rate."""

    def __init__(self, named: Any) -> None:
        super().__init__(named, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.01)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_an_optimizer_may_have_no_learning_rate(update: str) -> None:
    assert trained(problems.mlp(), Rateless, update=update, staleness=3) == trained(
        problems.mlp(), partial(SGD, lr=0.01), update=update, staleness=3, compensation="none"
    )


def test_what_has_no_learning_rate_has_no_schedule_of_it() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"lr_schedule given, and Rateless has no lr in its groups"):
        trained(problems.mlp(), Rateless, lr_schedule=lambda update: 0.5)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_state_in_a_group_is_refused_when_it_begins(update: str) -> None:
    class Late(Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    age = self.state[parameter]["age"] = self.state[parameter].get("age", 0) + 1
                    if age == 3:
                        group["factor"] = 0.5
                    parameter.sub_(parameter.grad, alpha=group["lr"] * group["factor"])

    with pytest.raises(hogwild.ArgumentError, match=r"Late keeps state in its parameter groups \(factor\)"):
        trained(problems.mlp(), partial(Late, defaults={"lr": 0.1, "factor": 1.0}), update=update)


def test_a_step_that_changes_a_shape_is_refused() -> None:
    def flattened(parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        parameter.data = parameter.data.flatten()

    with pytest.raises(hogwild.ArgumentError, match=r"its shape and dtype must stay"):
        problems.train(problems.mlp(), optimizer=partial(Own, change=flattened, alls=False), **SERIAL)


def test_a_differentiable_step_is_refused() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"SGD is given differentiable=True"):
        trained(problems.mlp(), partial(SGD, lr=0.1, differentiable=True))
