"""Kinds of state hidden in user code: each makes the arguments of a training, anew at every call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import problems
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import hogwild

Arguments = dict[str, Any]


def name_of(kind: Any) -> str | None:
    """Of each kind, in the names of tests."""
    return kind.__name__ if callable(kind) else None


# --- in the model


class Layer(nn.Module):
    """A layer whose factor somebody has a say in."""

    def __init__(self, factor: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.factor, self.calls, self.average = factor, 0, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor(self, x)


def model_with(*layers: nn.Module) -> nn.Module:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 3))


def counted(module: Any, x: Tensor) -> float:
    module.calls += 1
    return 1 + module.calls / 8


def averaged(module: Any, x: Tensor) -> Tensor:
    module.average = (0.9 * module.average + 0.1 * x.mean()).detach()
    return 1 + module.average


def scaled_by_the_first_batch(module: Any, x: Tensor) -> Tensor:
    if not module.calls:
        module.calls, module.average = 1, x.std().detach()
    return 1 / module.average


def counter_in_forward() -> Arguments:
    return {"model": model_with(Layer(counted))}


def moving_average_in_forward() -> Arguments:
    return {"model": model_with(Layer(averaged))}


def scale_of_the_first_batch() -> Arguments:
    return {"model": model_with(Layer(scaled_by_the_first_batch))}


def stateful_hook() -> Arguments:
    model, calls = problems.mlp(), []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output * (1 + len(calls) / 8)

    model[0].register_forward_hook(hook)
    return {"model": model}


def stateful_gradient_hook() -> Arguments:
    model, calls = problems.mlp(), []
    model[0].weight.register_hook(lambda gradient: calls.append(1) or gradient * len(calls))
    return {"model": model}


# --- in the loss


def running_baseline() -> Arguments:
    seen = [0.0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = problems.cross_entropy(model, batch)
        seen[0] = 0.9 * seen[0] + 0.1 * value.item()
        return value * (1 + seen[0])

    return {"loss": loss}


def baseline_of_the_first_batch() -> Arguments:
    seen: list[float] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = problems.cross_entropy(model, batch)
        if not seen:
            seen.append(value.item())
        return value * seen[0]

    return {"loss": loss}


def counter_beside_a_bound() -> Arguments:
    """Which refuses the parameters that one of the batches is tried on."""

    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.share = 0, nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            if (self.share > 1).any():
                raise ValueError("a share is over 1")
            self.calls += 1
            return x * self.share.detach() * (1 + self.calls / 100)

    return {"model": model_with(Bounded())}


def teacher_that_follows() -> Arguments:
    """Which is what the model is at first, and moves to what the model is later."""
    model = problems.mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(student: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            for own, followed in zip(teacher.parameters(), student.parameters(), strict=True):
                own.lerp_(followed, 0.05)
            target = teacher(batch[0])
        return problems.cross_entropy(student, batch) + nn.functional.mse_loss(student(batch[0]), target)

    return {"model": model, "loss": loss}


def generator_in_a_closure() -> Arguments:
    generator = torch.Generator().manual_seed(1)
    return {"loss": lambda m, b: problems.cross_entropy(m, b) * torch.rand((), generator=generator)}


def numpy_generator_in_a_closure() -> Arguments:
    generator = np.random.default_rng(1)
    return {"loss": lambda m, b: problems.cross_entropy(m, b) * generator.random()}


def loss_that_switches_the_mode() -> Arguments:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = problems.cross_entropy(model, batch)
        model.eval()
        return value

    return {"loss": loss, "model": model_with(Layer(lambda module, x: 2.0 if module.training else 1.0))}


def number_of_the_worker() -> Arguments:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) * (1 + hogwild.worker_info().index)

    return {"loss": loss, "workers": 2}


# --- in the data


class Samples(Dataset):
    def __init__(self) -> None:
        self.x, self.y = problems.data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] + self.noise(index), int(self.y[index])

    def noise(self, index: int) -> float:
        raise NotImplementedError


class Remembers(Samples):
    cache: dict[int, float]

    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def noise(self, index: int) -> float:
        return self.cache.setdefault(index, len(self.cache) / 8)


class Draws(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def noise(self, index: int) -> float:
        return float(self.random.random())


class Stream:
    calls = 0

    def batch(self, update: int, generator: torch.Generator) -> Any:
        self.calls += 1
        x, y = problems.data(16)
        return x * self.calls, y


def data_set_with_a_cache() -> Arguments:
    return {"data": Remembers()}


def data_set_that_draws() -> Arguments:
    return {"data": Draws()}


def source_that_counts() -> Arguments:
    return {"data": Stream()}


# --- in the schedule and the optimizer


def stateful_schedule() -> Arguments:
    calls: list[int] = []
    return {"lr_schedule": lambda update: calls.append(update) or 1 / len(calls)}


def schedule_of_the_first_update() -> Arguments:
    first: list[int] = []
    return {"lr_schedule": lambda update: first.append(update) or 1.0 / (1 + first[0])}


STEPS: list[int] = []


class Stepped(torch.optim.Optimizer):
    """p ← p − size() g."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self._steps, self.steps = 0, torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        size = self.size()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-size)

    def size(self) -> float:
        return 0.1


class OfItself(Stepped):
    def size(self) -> float:
        self._steps += 1
        return 0.1 / self._steps


class OfTheProgram(Stepped):
    def size(self) -> float:
        STEPS.append(1)
        return 0.1 / len(STEPS)


class InATensor(Stepped):
    def size(self) -> float:
        self.steps += 1
        return 0.1 / self.steps.item()


class OfTheFirstGradient(Stepped):
    def size(self) -> float:
        if not self._steps:
            self._steps = float(self.param_groups[0]["params"][0].grad.norm())
        return 0.1 / self._steps


def optimizer_with_a_private_number() -> Arguments:
    return {"optimizer": OfItself}


def optimizer_with_a_global() -> Arguments:
    return {"optimizer": OfTheProgram}


def optimizer_with_a_tensor() -> Arguments:
    return {"optimizer": InATensor}


def optimizer_that_keeps_the_first_gradient() -> Arguments:
    return {"optimizer": OfTheFirstGradient}


def optimizer_whose_hook_counts() -> Arguments:
    def made(named: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(named, lr=0.1)
        optimizer.register_step_pre_hook(count)
        return optimizer

    calls: list[int] = []

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        calls.append(1)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / len(calls))

    return {"optimizer": made}


def factory_that_counts() -> Arguments:
    calls: list[int] = []
    return {"optimizer": lambda named: calls.append(1) or torch.optim.SGD(named, lr=0.1 / len(calls))}


SEEN: dict[Callable[[], Arguments], str] = {
    counter_in_forward: "loss",
    moving_average_in_forward: "loss",
    scale_of_the_first_batch: "loss",
    stateful_hook: "loss",
    stateful_gradient_hook: "the gradient of 0.weight",
    running_baseline: "loss",
    baseline_of_the_first_batch: "loss",
    teacher_that_follows: "loss",
    counter_beside_a_bound: "loss",
    generator_in_a_closure: "loss",
    numpy_generator_in_a_closure: "loss",
    loss_that_switches_the_mode: "loss",
    number_of_the_worker: "loss",
    data_set_with_a_cache: "loss",
    data_set_that_draws: "loss",
    source_that_counts: "loss",
    stateful_schedule: "lr_schedule",
    schedule_of_the_first_update: "lr_schedule",
    optimizer_with_a_private_number: "OfItself",
    optimizer_with_a_global: "OfTheProgram",
    optimizer_with_a_tensor: "InATensor",
    optimizer_that_keeps_the_first_gradient: "OfTheFirstGradient",
    optimizer_whose_hook_counts: "SGD",
    factory_that_counts: "optimizer factory",
}


# --- what does not show in the first batches


def late_counter() -> Arguments:
    calls: list[int] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        return problems.cross_entropy(model, batch) * max(1.0, len(calls) / 30)

    return {"loss": loss}


def cache_of_a_later_epoch() -> Arguments:
    class Augments(Samples):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, float] = {}

        def noise(self, index: int) -> float:
            return self.cache.setdefault(index, float(hogwild.worker_info().update > 2))

    return {"data": Augments(), "updates": 30}


def schedule_that_turns() -> Arguments:
    calls: list[int] = []

    def factor(update: int) -> float:
        calls.append(update)
        return 1.0 if len(calls) < 30 else 1 / len(calls)

    return {"lr_schedule": factor}


NOT_SEEN: dict[Callable[[], Arguments], str] = {
    late_counter: "state that begins to matter after the first batches",
    cache_of_a_later_epoch: "a cache that only a later epoch meets",
    schedule_that_turns: "a schedule that begins to count late",
}
