"""One worker's account of the gradients that it computed, for the audit of a run.

The worker keeps the account, not the rule, so that it does not depend on the rule being right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from hogwild.shared.layout import Layout

_ROUNDINGS = 4  # of a step: its product and its sum, twice over, for p has moved since it was read


class Account:
    """What one worker computed, in memory of its own; the fields are those of `Totals`."""

    def __init__(self, layout: Layout) -> None:
        self.computed, self.rounding = (
            [torch.zeros(entry.numel, dtype=torch.float64) for entry in layout.entries] for _ in range(2)
        )
        self.updates = [0] * len(layout.entries)
        self.nanoseconds = 0

    def add(
        self,
        gradients: Sequence[Tensor | None],
        parameters: Sequence[Tensor],
        rates: Sequence[float],
        share: float,
    ) -> None:
        """Enter the gradients of one update, of which they are a `share`, at each parameter's learning rate.

        `parameters` have about the values that were stepped.
        """
        began = time.thread_time_ns()
        for i, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=False)):
            if gradient is None:
                continue
            rate = share * _rounded(rates[i], gradient.dtype)
            if gradient.is_sparse:
                self._enter_rows(i, gradient, parameter, rate)
            else:
                self._enter(i, None, gradient.reshape(-1).double().mul_(-rate), parameter.reshape(-1))
            self.updates[i] += 1
        self.nanoseconds += time.thread_time_ns() - began

    def _enter_rows(self, i: int, gradient: Tensor, parameter: Tensor, rate: float) -> None:
        rows, width = gradient._indices()[0], math.prod(gradient.shape[1:])  # a row may be there twice: two steps
        places = (rows.unsqueeze(1) * width + torch.arange(width)).reshape(-1)
        self._enter(i, places, gradient._values().reshape(-1).double().mul_(-rate), parameter[rows].reshape(-1))

    def _enter(self, i: int, places: Tensor | None, steps: Tensor, values: Tensor) -> None:
        """Steps d to all values of parameter i, or to those at `places`, which now have these values."""
        sizes = steps.abs()
        unit = torch.finfo(values.dtype).eps / 2
        rounding = torch.minimum(sizes, _ROUNDINGS * unit * (values.abs() + sizes))
        for total, terms in ((self.computed, steps), (self.rounding, rounding)):
            if places is None:
                total[i].add_(terms)
            else:
                total[i].index_add_(0, places, terms)


def _rounded(rate: float, dtype: torch.dtype) -> float:
    """The learning rate as the step multiplies with it."""
    return rate if dtype is torch.float64 else torch.tensor(rate, dtype=torch.float32).item()
