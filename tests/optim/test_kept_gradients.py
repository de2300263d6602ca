"""Gradients in memory that the user keeps, or that are a parameter: no step and no clipping writes there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import problems
import pytest
import tables
import torch
from optimizers import OPTIMIZERS, plain, trained
from torch import Tensor, nn
from torch.optim import Optimizer
from traits import NAMES, SAME_BITS, WITHOUT_SLOTS

import hogwild

KEPT = torch.full((3,), 2.5)
STEPPED_BY_TENSOR = ["sgd in one call", "adafactor", "halving"]


class Shift(torch.autograd.Function):
    """x + b, with `kept` as the gradient of b, or b itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Tensor, kept: Tensor | None) -> Tensor:
        ctx.kept = kept
        ctx.save_for_backward(b)
        return x + b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (b,) = ctx.saved_tensors
        return gradient, b.view_as(b) if ctx.kept is None else ctx.kept, None


class Shifted(nn.Module):
    def __init__(self, kept: Tensor | None) -> None:
        super().__init__()
        self.inner, self.kept = problems.mlp(), kept
        self.shift = nn.Parameter(torch.full((3,), 4.0))

    def forward(self, x: Tensor) -> Tensor:
        return Shift.apply(self.inner(x), self.shift, self.kept)


def hooked() -> nn.Module:
    model = problems.mlp()
    model[2].bias.register_hook(lambda gradient: KEPT)
    return model


def halving(named: Any) -> Optimizer:
    """Halves the gradients in place before each step."""
    optimizer = torch.optim.SGD(named, lr=0.1)

    def halve(stepper: Optimizer, *_: Any) -> None:
        for parameter in stepper.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    return optimizer


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a constant": lambda: Shifted(KEPT),
    "the parameter": lambda: Shifted(None),
    "a hook's": hooked,
}


@pytest.fixture(autouse=True)
def kept_as_it_was() -> Any:
    yield
    unharmed = torch.equal(KEPT, torch.full((3,), 2.5))
    KEPT.fill_(2.5)
    assert unharmed


@pytest.mark.parametrize("name", STEPPED_BY_TENSOR)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("update", NAMES)
def test_one_worker_leaves_the_bits_of_the_plain_loop(update: str, model: str, name: str) -> None:
    optimizer = OPTIMIZERS.get(name, halving)
    for norm in (None, 0.5):
        expected = plain(MODELS[model](), optimizer, clip_grad_norm=norm)
        assert trained(MODELS[model](), optimizer, update=update, clip_grad_norm=norm) == expected


@pytest.mark.parametrize("name", STEPPED_BY_TENSOR)
@pytest.mark.parametrize("model", ["a constant", "the parameter"])
@pytest.mark.parametrize("update", SAME_BITS)
def test_several_workers_leave_the_bits_of_one(update: str, model: str, name: str) -> None:
    settings = {"update": update, "staleness": 2, "micro_batches": 3, "compensation": "none", "clip_grad_norm": 0.5}
    optimizer = OPTIMIZERS.get(name, halving)
    runs = [trained(MODELS[model](), optimizer, **settings | {"workers": workers}) for workers in (1, 3)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("update", NAMES)
def test_gradients_that_are_told(update: str) -> None:
    def told(model: nn.Module, batch: Any) -> Any:
        return 1.0, {name: kept[name] for name, _ in model.named_parameters()}

    kept = {name: torch.full_like(parameter, 0.5) for name, parameter in problems.mlp().named_parameters()}
    optimizer = partial(torch.optim.SGD, lr=0.1, foreach=True)
    problems.train(loss=told, optimizer=optimizer, update=update, workers=1, updates=3, clip_grad_norm=0.1)
    assert all(torch.equal(value, torch.full_like(value, 0.5)) for value in kept.values())


@pytest.mark.parametrize("dense", [False, True], ids=["rows", "dense"])
@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_gradients_of_a_table(update: str, dense: bool) -> None:
    """Of rows that are there once and in order: what coalescing gives back as it is."""

    def kept_of(rows: int) -> Tensor:
        values = torch.ones(rows, tables.WIDTH)
        form = (tables.ROWS, tables.WIDTH)
        return values if dense else torch.sparse_coo_tensor(torch.arange(rows)[None], values, form, is_coalesced=True)

    def told(model: nn.Module, batch: Any) -> Any:
        if problems.in_worker_thread():
            return 1.0, {"table.weight": kept}
        return tables.loss(model, batch)  # which shows that the table's gradients are sparse

    rows = tables.ROWS if dense else 4
    kept = kept_of(rows)
    settings = {"kind": "threads", "workers": 1, "updates": 4, "batch_size": tables.BATCH, "staleness": 1}
    hogwild.train(
        tables.made(),
        tables.words(),
        told,
        optimizer=tables.OPTIMIZERS["sgd"],
        update=update,
        clip_grad_norm=0.1,
        **settings,
    )
    assert torch.equal(kept.to_dense(), kept_of(rows).to_dense())
