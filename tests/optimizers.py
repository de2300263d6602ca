"""Optimizers of every sort, serial training with them, and a model that has most of what a model may have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import problems
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import hogwild

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
    torch.default_generator.manual_seed(1)
    return Everything(empty=name != "adafactor")


def everything_loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return cross_entropy(model(x, branch=bool(y[0] == 0)), y)


def plain(
    model: nn.Module,
    optimizer: Callable[..., Optimizer],
    loss: Callable[[nn.Module, Any], Tensor] = problems.cross_entropy,
    **arguments: Any,
) -> str:
    """The digest that serial training leaves, by the reference."""
    problems.train_serially(model, optimizer=optimizer, loss=loss, **{"updates": UPDATES, **arguments})
    return hogwild.digest(model)


def trained(model: nn.Module, optimizer: Callable[..., Optimizer], **arguments: Any) -> str:
    return problems.train(model, optimizer=optimizer, **{"updates": UPDATES, **SERIAL, **arguments}).digest


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam with decay": partial(torch.optim.Adam, lr=0.01, weight_decay=0.01),
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
    "maximizing": partial(torch.optim.SGD, lr=0.001, momentum=0.9, maximize=True),
    "decay alone": partial(torch.optim.SGD, lr=0.05, weight_decay=0.01),
    "lr as a tensor": partial(torch.optim.Adam, lr=torch.tensor(0.01)),
}
