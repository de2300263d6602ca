"""Small problems that the tests train.

Models are seeded by torch's generator of the processor alone: `torch.manual_seed` notes for other devices where it was
called, which takes milliseconds under pytest, and most tests make a model or two.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hogwild
from hogwild import reference

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)


def data(samples: int = 200, features: int = 8) -> tuple[Tensor, Tensor]:
    """Points of three classes, the same at every call: float32 (samples, features) and int64 (samples,)."""
    generator = torch.Generator().manual_seed(7)
    centres = 2 * torch.randn(3, features, generator=generator)
    y = torch.randint(0, 3, (samples,), generator=generator)
    return centres[y] + torch.randn(samples, features, generator=generator), y


def mlp() -> nn.Module:
    """Two layers, no buffers, no draws."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def conv_bn() -> nn.Module:
    """A convolution and a BatchNorm over the eight features."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )


def dropout() -> nn.Module:
    """Draws from torch's default generator in every forward pass."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The mean loss of a batch."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def interrupting(call: int, evaluate: Callable[[nn.Module], dict[str, float]] | None = None) -> Any:
    """An `evaluate` that is interrupted, as by Ctrl-C, when it is called that many times; before, it says what
    `evaluate` does, or nothing."""
    calls = itertools.count(1)

    def interrupted(model: nn.Module) -> dict[str, float]:
        if next(calls) == call:
            raise KeyboardInterrupt
        return evaluate(model) if evaluate is not None else {}

    return interrupted


def interrupting_at(update: int) -> hogwild.Callback:
    """A callback that interrupts, as by Ctrl-C, once that version or, where workers race and not each that is due is
    shown, a later one was evaluated."""

    class Interrupting(hogwild.Callback):
        def on_evaluation(self, progress: hogwild.Progress) -> None:
            if progress.updates >= update:
                raise KeyboardInterrupt

    return Interrupting()


def in_worker_thread() -> bool:
    """True in a worker of kind "threads"; the main thread makes the dry run."""
    return threading.current_thread() is not threading.main_thread()


def accuracy(model: nn.Module) -> dict[str, float]:
    """On the training data."""
    x, y = data()
    model.eval()
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}


def train(model: nn.Module | None = None, **arguments: Any) -> hogwild.Run:
    """Train with defaults that suit the tests; any argument of `hogwild.train` may be given."""
    settings: dict[str, Any] = {"optimizer": SGD, "batch_size": 16, "kind": "threads", "loss": cross_entropy}
    settings |= arguments
    if "epochs" not in settings:
        settings.setdefault("updates", 40)
    if settings.get("audit"):  # whose account is of steps that nothing is changed of
        settings.setdefault("compensation", "none")
    samples = settings.pop("data", None)
    samples = data() if samples is None else samples
    return hogwild.train(mlp() if model is None else model, samples, settings.pop("loss"), **settings)


def train_serially(model: nn.Module, **arguments: Any) -> list[float]:
    """Train by the reference, with the same defaults; returns the losses."""
    settings: dict[str, Any] = {"optimizer": SGD, "batch_size": 16, "loss": cross_entropy}
    settings |= arguments
    if "epochs" not in settings:
        settings.setdefault("updates", 40)
    samples = settings.pop("data", None)
    samples = data() if samples is None else samples
    return reference.train_serially(model, samples, settings.pop("loss"), **settings)
