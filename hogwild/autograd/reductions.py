"""The gradient of one batch by every reduction a loss offers, side by side.

With `B` samples, `none`, `sum` (divided by B), `mean` and `indexed` are four ways to write one number: they
walk the graph of one forward pass and differ by rounding. `separate` is another number wherever a sample's
output depends on the rest of its batch, as it does through BatchNorm in training mode.

Shapes: `B` samples in the batch; `P` values in all parameters that require a gradient, in the order of
`model.parameters()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor, nn


class ReductionLoss(Protocol):
    """A loss with a choice of reduction, such as `torch.nn.functional.cross_entropy`."""

    def __call__(self, output: Tensor, target: Tensor, /, *, reduction: str) -> Tensor:
        """The losses of the batch: shape [B, ...] for `"none"`, [] for `"sum"` and `"mean"`."""
        ...


@dataclass(frozen=True)
class ReductionGradients:
    """The average gradient of one batch, five ways; each of shape [P], the parameters' dtype.

    Attributes:
        none: the mean over the samples of the gradient of `loss(..., reduction="none")[i]`.
        sum: the gradient of `reduction="sum"`, divided by the number of losses.
        mean: the gradient of `reduction="mean"`. A loss that weights its samples (class weights,
            `ignore_index`) divides by the sum of the weights instead of their number; then it differs.
        indexed: the mean over the samples of the gradient of the loss of `output[i:i + 1]`, all rows of one
            forward pass.
        separate: the mean over the samples of the gradient of the loss of `model(input[i:i + 1])`, each
            sample fed to the model alone.
    """

    none: Tensor
    sum: Tensor
    mean: Tensor
    indexed: Tensor
    separate: Tensor

    def discrepancies(self) -> dict[tuple[str, str], float]:
        """The largest absolute difference within each of the ten pairs, by the names of the two."""
        names = [one.name for one in fields(self)]
        return {(a, b): float((getattr(self, a) - getattr(self, b)).abs().max()) for a, b in combinations(names, 2)}


def reduction_gradients(model: nn.Module, loss: ReductionLoss, batch: tuple[Tensor, Tensor]) -> ReductionGradients:
    """The average gradient of one batch by every reduction; the model is left as it was found.

    No `.grad` is read or written. Buffers (BatchNorm's running statistics) and torch's default generator are
    put back afterwards, so a second call gives the same bits. A model that draws random numbers in its
    forward pass draws others for `separate` than for the rest.

    Args:
        model: any module whose output has the samples along its first dimension, in the mode it is to be in.
        loss: a function with a `reduction` argument, such as `torch.nn.functional.cross_entropy`.
        batch: input of shape [B, ...] and target of shape [B, ...].

    Raises:
        ValueError: no parameter requires a gradient, the batch is empty, or the output does not have one row
            per sample.
    """
    inputs, targets = batch
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise ValueError("no parameter of the model requires a gradient")
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ValueError(f"the batch has {len(inputs)} inputs and {len(targets)} targets; give B > 0 of each")
    with _left_as_found(model):
        output = model(inputs)
        if output.dim() == 0 or len(output) != len(inputs):
            raise ValueError(f"the output has shape {tuple(output.shape)}, not one row for each of {len(inputs)}")
        losses = loss(output, targets, reduction="none")
        total = loss(output, targets, reduction="sum")
        mean = loss(output, targets, reduction="mean")
        rows = [slice(i, i + 1) for i in range(len(inputs))]
        return ReductionGradients(
            none=_mean_gradient((losses[i].mean() for i in range(len(losses))), parameters),
            sum=_gradient(total, parameters) / losses.numel(),
            mean=_gradient(mean, parameters),
            indexed=_mean_gradient((loss(output[i], targets[i], reduction="mean") for i in rows), parameters),
            separate=_mean_gradient((loss(model(inputs[i]), targets[i], reduction="mean") for i in rows), parameters),
        )


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The gradient of one scalar, shape [P]; the graph is kept, for the next reduction walks it again."""
    parts = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(one) if part is None else part).reshape(-1)
            for one, part in zip(parameters, parts, strict=True)
        ]
    )


def _mean_gradient(losses: Iterator[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The mean over the losses of the gradient of each, shape [P], summed in their order."""
    total = _gradient(next(losses), parameters)
    count = 1
    for loss in losses:
        total += _gradient(loss, parameters)
        count += 1
    return total / count


@contextmanager
def _left_as_found(model: nn.Module) -> Iterator[None]:
    kept = [(one, one.detach().clone()) for one in model.buffers()]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            yield
        finally:
            with torch.no_grad():
                for one, before in kept:
                    one.copy_(before)
