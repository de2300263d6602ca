"""Outer steps: what an average moves the parameters is taken for a gradient, as in DiLoCo (arXiv 2311.08105).

w ← SGD with Nesterov's momentum (w, gradient w − mean), where w is what all machines began with
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hogwild.shared.dealing import Averages
from hogwild.shared.exchange import Exchange


class OuterSteps:
    """The outer optimizer of a run, with its parameters and their velocity.

    Args:
        averages: with its rate and momentum.
        values: what all machines begin with.
        predicts: beside the parameters lies what is predicted of them.
    """

    def __init__(self, averages: Averages, values: Exchange, *, predicts: bool) -> None:
        self._predicted = slice(1, 1 + predicts)
        self._weights = [nn.Parameter(flat.clone()) for flat in values.parts[0]]
        options: dict[str, Any] = {"lr": averages.rate, "momentum": averages.momentum}
        self._optimizer = torch.optim.SGD(self._weights, nesterov=averages.momentum > 0, **options)

    @classmethod
    def of(cls, averages: Averages, values: Exchange, *, predicts: bool) -> OuterSteps | None:
        """That of a run; None where the mean is taken as it is."""
        return cls(averages, values, predicts=predicts) if averages.rate is not None else None

    @torch.no_grad()
    def step(self, values: Exchange) -> None:
        """Put what the step gives in place of the mean, and move what is predicted by as much."""
        means = values.parts[0]
        for weight, mean in zip(self._weights, means, strict=True):
            weight.grad = weight - mean
        self._optimizer.step()
        for number, (weight, mean) in enumerate(zip(self._weights, means, strict=True)):
            moved: Tensor = weight - mean
            for predicted in values.parts[self._predicted]:
                predicted[number].add_(moved)
            mean.copy_(weight)
