"""With one worker every optimizer leaves the bits of the loop one would write by hand; with more it stays whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import problems
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import hogwild
from hogwild.optimizer_state import OptimizerPlan, make_optimizer
from hogwild.rules import NAMES

SERIAL = {"workers": 1, "staleness": 0, "micro_batches": 1}
UPDATES = 15


class Everything(nn.Module):
    """Most that a model may have: tied, frozen, 0-dim and empty parameters, two dtypes, and a branch that a batch
    takes only where its first sample is of class 0."""

    def __init__(self, *, empty: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.ones(0 if empty else 2, 3))
        self.branch = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3).double()

    def forward(self, x: Tensor, *, branch: bool) -> Tensor:
        x = self.frozen(torch.relu(self.again(torch.relu(self.first(x))))) * self.scale + self.nothing.sum()
        if branch:
            x = x + self.branch(x)
        return self.last(x.double())


def everything(name: str = "") -> nn.Module:
    """The same model at every call; without the empty parameter for Adafactor, which divides by its size."""
    torch.manual_seed(1)
    return Everything(empty=name != "adafactor")


def everything_loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return cross_entropy(model(x, branch=bool(y[0] == 0)), y)


def conv() -> nn.Module:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    return model.to(memory_format=torch.channels_last)


def plain(
    model: nn.Module,
    optimizer: Callable[..., Optimizer],
    loss: Callable[[nn.Module, Any], Tensor] = problems.cross_entropy,
    updates: int = UPDATES,
    lr_schedule: Callable[[int], float] | None = None,
    clip_grad_norm: float | None = None,
) -> str:
    """The digest after the loop one would write by hand, over the batches of the schedule."""
    x, y = problems.data()
    schedule = hogwild.Schedule(len(x), 16)
    stepper = optimizer(list(model.named_parameters()))
    rates = [group.get("lr") for group in stepper.param_groups]
    for update in range(updates):
        rows = schedule.indices(update)
        stepper.zero_grad()
        loss(model, (x[rows], y[rows])).backward()
        if clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
        if lr_schedule is not None:
            for group, rate in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = rate * lr_schedule(update)
        stepper.step()
    return hogwild.digest(model)


def trained(model: nn.Module, optimizer: Callable[..., Optimizer], **arguments: Any) -> str:
    return problems.train(model, optimizer=optimizer, **{"updates": UPDATES, **SERIAL, **arguments}).digest


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1, lr_decay=0.01),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.05, t0=4),
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "sgd in one call": partial(torch.optim.SGD, lr=0.05, momentum=0.9, foreach=True),
    "fused adam": partial(torch.optim.Adam, lr=0.01, fused=True),
    "lr as a tensor": partial(torch.optim.Adam, lr=torch.tensor(0.01)),
}
by_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


@by_optimizer
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_one_worker_leaves_the_bits_of_the_plain_loop(name, update):
    optimizer = OPTIMIZERS[name]
    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), optimizer)


@by_optimizer
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_parameters_without_a_gradient_in_some_updates(name, update):
    optimizer = OPTIMIZERS[name]
    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, update=update) == expected


@pytest.mark.parametrize("update", NAMES)
@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_every_rule_steps_alike_when_there_is_one_worker(update, name):
    optimizer = OPTIMIZERS[name]
    assert trained(problems.conv_bn(), optimizer, update=update) == plain(problems.conv_bn(), optimizer)


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_in_a_process(name):
    optimizer = OPTIMIZERS[name]
    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, kind="processes") == expected


def test_what_a_batch_does_not_reach_is_not_stepped():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x, branch=hogwild.worker_info().update == 0), y)

    model, once = everything(), everything()
    adam = OPTIMIZERS["adam"]
    trained(model, adam, loss=loss)
    trained(once, adam, loss=loss, updates=1)
    assert torch.equal(model.branch.weight, once.branch.weight), "Adam would have moved it on by its momentum"
    assert not torch.equal(model.branch.weight, everything().branch.weight)


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
@pytest.mark.parametrize("update", ["hogwild", "sync"])
def test_parameter_groups_keep_their_meaning(name, update):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        biases = [p for n, p in named if n.endswith("bias") and p.requires_grad]
        rest = [p for n, p in named if not n.endswith("bias") and p.requires_grad]
        groups = [{"params": biases, "weight_decay": 0.0}, {"params": rest, "lr": 0.02}]
        return OPTIMIZERS[name].func(groups, lr=0.05, weight_decay=0.1)

    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, update=update) == expected


def test_named_parameter_groups():
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return torch.optim.Adam([{"params": named[:2], "lr": 0.1}, {"params": named[2:]}], lr=0.01)

    assert trained(problems.mlp(), optimizer) == plain(problems.mlp(), optimizer)


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_parameters_left_out_of_the_optimizer_stay(update):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return torch.optim.Adam(named[:2], lr=0.01)

    model = problems.mlp()
    assert trained(model, optimizer, update=update) == plain(problems.mlp(), optimizer)
    assert torch.equal(model[2].weight, problems.mlp()[2].weight)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("update", ["racing", "hogwild", "ordered", "sync"])
@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_learning_rate_schedule(update, name):
    def warm_up(number: int) -> float:
        return min(1.0, (number + 1) / 8)

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return OPTIMIZERS[name].func([{"params": named[:1], "lr": 0.003}, {"params": named[1:]}], lr=0.01)

    expected = plain(problems.mlp(), optimizer, lr_schedule=warm_up)
    assert trained(problems.mlp(), optimizer, lr_schedule=warm_up, update=update) == expected
    assert expected != plain(problems.mlp(), optimizer)


@pytest.mark.parametrize("update", ["racing", "hogwild", "ordered", "sync"])
@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
@pytest.mark.parametrize("norm", [0.05, 1e6])
def test_clipping_is_by_the_norm_of_the_per_tensor_norms(update, name, norm):
    optimizer = OPTIMIZERS[name]
    expected = plain(problems.conv_bn(), optimizer, clip_grad_norm=norm)
    assert trained(problems.conv_bn(), optimizer, clip_grad_norm=norm, update=update) == expected


def test_clipping_with_two_dtypes_and_missing_gradients():
    optimizer = OPTIMIZERS["momentum"]
    expected = plain(everything(), optimizer, everything_loss, clip_grad_norm=0.1)
    assert trained(everything(), optimizer, loss=everything_loss, clip_grad_norm=0.1) == expected


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_channels_last(name):
    optimizer = OPTIMIZERS[name]
    model = conv()
    assert trained(model, optimizer) == plain(conv(), optimizer)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["momentum", "adagrad"])
def test_other_dtypes(dtype, name):
    """Half precision included, whose bits depend on where the vector loop over a tensor ends."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.to(dtype)).float(), y)

    optimizer = OPTIMIZERS[name]
    expected = plain(problems.mlp().to(dtype), optimizer, loss)
    assert trained(problems.mlp().to(dtype), optimizer, loss=loss) == expected


def test_complex_parameters():
    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Linear(8, 3, dtype=torch.complex64)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.to(torch.complex64)).abs(), y)

    optimizer = OPTIMIZERS["momentum"]
    assert trained(model(), optimizer, loss=loss) == plain(model(), optimizer, loss)


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_sparse_gradients(update):
    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Flatten(), nn.Linear(32, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.abs().mul(3).long().clamp(max=11)), y)

    for optimizer in (OPTIMIZERS["sgd"], partial(torch.optim.Adagrad, lr=0.1)):
        assert trained(model(), optimizer, loss=loss, update=update) == plain(model(), optimizer, loss)


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


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_an_optimizer_of_ones_own_with_python_numbers_as_state(update):
    assert trained(problems.mlp(), Counting, update=update) == plain(problems.mlp(), Counting)
    expected = plain(everything(), Counting, everything_loss)
    assert trained(everything(), Counting, loss=everything_loss, update=update) == expected


@pytest.mark.parametrize("kind", ["threads", "processes"])
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


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("update", ["locked", "snapshot"])
def test_under_a_lock_no_step_of_two_workers_is_lost(kind, update):
    steps = {"updates": 200, "update": update, "kind": kind, "workers": 2, "batch_size": 4}
    model = nn.Linear(8, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model.weight.sum()  # its gradient is one, whatever was read

    problems.train(model, loss=loss, optimizer=partial(torch.optim.SGD, lr=1.0), **steps)
    assert torch.equal(model.weight, torch.full((1, 8), -200.0))


def loaded_state(parameters: list[nn.Parameter], *, which: int) -> dict[str, Any]:
    """The state dict of an Adam that has stepped the first `which` parameters five times."""
    adam = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(5):
        for parameter in parameters[:which]:
            parameter.grad = torch.full_like(parameter, 0.1)
        adam.step()
    return adam.state_dict()


@pytest.mark.parametrize("which", [4, 1])
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_factory_that_restores_a_saved_state(which, update):
    saved = loaded_state(list(problems.mlp().parameters()), which=which)

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        adam = torch.optim.Adam(named, lr=0.01)
        names = [{**group, "param_names": [n for n, _ in named]} for group in saved["param_groups"]]
        adam.load_state_dict({"state": saved["state"], "param_groups": names})
        return adam

    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), optimizer)


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
    from hogwild.memory import Layout

    named = list(problems.mlp().named_parameters())
    made = make_optimizer(optimizer, named)
    return OptimizerPlan.of(made, [p for _, p in named], Layout.of(named), frozenset())


def test_elementwise_optimizers_and_no_others_step_on_the_flat_tensor():
    flat = {name for name, optimizer in OPTIMIZERS.items() if plan_of(optimizer).flat}
    assert set(OPTIMIZERS) - flat == {"adafactor", "sgd in one call", "fused adam"}
    assert not plan_of(Counting).flat


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
        with pytest.raises(RuntimeError):
            worker.commit(worker.claim(), [torch.zeros(5), *[None] * 3])
        modes.append(torch.is_grad_enabled())

    hogwild.launch(work, problems.mlp(), optimizer=OPTIMIZERS["sgd"], updates=1, workers=1, kind="threads")
    assert modes == [True]
