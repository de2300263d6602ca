"""Audit: what share of the gradient that was computed was applied to the model, parameter by parameter.

    each worker     c = Σ −lr g, and what bounds the rounding of the steps; private, in float64, a term per update
    in the end      the sums over the workers, shared, under the commit lock
    the parent      a = final − initial;  projection = ⟨a, c⟩ ÷ ⟨c, c⟩

The worker's loop keeps the account, not the rule, so that it does not depend on the rule being right. It holds for
plain SGD, whose step is p ← p − lr g; another optimizer, or clipping, has none.

A step d = −lr g rounds its product and its sum, each by u (|p| + |d|) at most, u being half of the dtype's epsilon
(Higham 2002, Accuracy and Stability of Numerical Algorithms, section 2.2), and never by more than |d|, for p itself is
a float. The bound is the sum of that over all steps, as if every one had rounded the same way: equal steps do.

Legend: V values of one parameter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.memory import Arena, Layout

_ROUNDINGS = 4  # of a step: its product and its sum, twice over, for p has moved since it was read


@dataclass(frozen=True)
class ParameterAudit:
    """One parameter's account.

    Attributes:
        name: of the parameter.
        projection: ⟨applied, computed⟩ ÷ ⟨computed, computed⟩; None where no gradient was computed, or a zero one; NaN
            where one was not finite.
        bound: how far from 1 the rounding of the steps alone can take the projection.
        updates: gradients computed for it.
    """

    name: str
    projection: float | None
    bound: float
    updates: int

    @property
    def excess(self) -> float:
        """How far the projection is from 1, beyond what rounding explains; 0 or less where rounding explains it."""
        if self.projection is None:
            return -math.inf
        return abs(self.projection - 1) - self.bound if math.isfinite(self.projection + self.bound) else math.inf


@dataclass(frozen=True)
class Audit:
    """What share of the computed gradient was applied over a run.

    Attributes:
        projection: over all parameters together; 1 where nothing was lost or applied twice.
        bound: how far from 1 rounding alone can take it.
        parameters: each for itself.
        seconds: processor time that the workers spent on the account.
        nbytes: memory that it took in each worker.
    """

    projection: float | None
    bound: float
    parameters: tuple[ParameterAudit, ...]
    seconds: float
    nbytes: int

    @property
    def whole(self) -> bool:
        """True when all that was computed was applied once: every projection is 1 up to its rounding bound."""
        return all(parameter.excess <= 0 for parameter in self.parameters)

    @property
    def worst(self) -> ParameterAudit:
        """The parameter whose projection is furthest from 1 beyond its bound."""
        return max(self.parameters, key=lambda parameter: parameter.excess)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values, with `whole` and the name of the worst parameter."""
        parameters = [
            {**asdict(one), "projection": _finite(one.projection), "bound": _finite(one.bound)}
            for one in self.parameters
        ]
        own = {"projection": _finite(self.projection), "bound": _finite(self.bound), "parameters": parameters}
        return {**asdict(self), **own, "whole": self.whole, "worst": self.worst.name}

    def __str__(self) -> str:
        """The audit in one line."""
        return self.summary()

    def summary(self) -> str:
        """One line for a person."""
        if self.projection is None:
            return "no gradient was computed"
        if not math.isfinite(self.projection):
            return "some computed gradients were not finite"
        share = f"{100 * self.projection:.7g} % of the computed gradient was applied"
        if self.whole:
            return f"{share}; rounding alone explains up to ± {100 * self.bound:.1g} %"
        worst = self.worst
        return f"{share} (worst: {worst.name}, {100 * (worst.projection or 0):.6g} %)"


class Totals:
    """The workers' accounts together, in shared memory.

    Of parameter i: `computed[i]` is Σ d and `rounding[i]` bounds what the steps rounded, float64 of shape [V];
    `updates[i]` is how many gradients reached it.
    """

    _REPORTED, _NANOSECONDS, _HEAD = 0, 1, 2

    def __init__(self, layout: Layout, arena: Arena, offset: int) -> None:
        numels = [entry.numel for entry in layout.entries]
        self.words = arena.words(offset, self._HEAD)
        self.updates = arena.words(offset + 8 * self._HEAD, len(numels))
        values = arena.tensor(offset + 8 * (self._HEAD + len(numels)), 2 * sum(numels), torch.float64)
        self.computed = torch.split(values[: sum(numels)], numels)
        self.rounding = torch.split(values[sum(numels) :], numels)

    @classmethod
    def size(cls, layout: Layout) -> int:
        """Bytes that it takes in the arena."""
        return 8 * (cls._HEAD + sum(1 + 2 * entry.numel for entry in layout.entries))

    @property
    def reported(self) -> int:
        """Workers whose account is in it."""
        return self.words[self._REPORTED]

    @property
    def seconds(self) -> float:
        """What keeping the accounts cost, in seconds of the workers' time."""
        return self.words[self._NANOSECONDS] / 1e9

    def take(self, account: Account) -> None:
        """Add a worker's account. Called under the commit lock."""
        for i in range(len(self.computed)):
            self.computed[i].add_(account.computed[i])
            self.rounding[i].add_(account.rounding[i])
            self.updates[i] += account.updates[i]
        self.words[self._NANOSECONDS] += account.nanoseconds
        self.words[self._REPORTED] += 1


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


def why_not(parameters: Layout, *, plain_sgd: bool, clips: bool, skips_sets: bool) -> str | None:
    """Why a run cannot be audited; None where the step is p ← p − lr g on real numbers, as it must be.

    `skips_sets`: micro-batches that were computed are left out on purpose, with another of their set.
    """
    if not plain_sgd:
        return "the optimizer is not plain SGD, without momentum and weight decay"
    if clips:
        return "clip_grad_norm changes gradients after they were computed"
    if skips_sets:
        return "on_nonfinite='skip' leaves out micro-batches that were computed, with another of their set"
    others = [entry.name for entry in parameters.entries if not entry.dtype.is_floating_point]
    return f"{others[0]} is complex" if others else None


def settle(layout: Layout, totals: Totals, initial: Sequence[Tensor], final: Sequence[Tensor]) -> Audit:
    """Close the account: compare what all workers computed with what became of the parameters."""
    parameters: list[ParameterAudit] = []
    sums = torch.zeros(3, dtype=torch.float64)
    for i, entry in enumerate(layout.entries):
        applied = final[i].detach().reshape(-1).double() - initial[i].detach().reshape(-1).double()
        computed = totals.computed[i]
        part = torch.stack([applied @ computed, computed @ computed, totals.rounding[i] @ computed.abs()])
        sums += part
        parameters.append(ParameterAudit(entry.name, *_ratios(part), totals.updates[i]))
    return Audit(*_ratios(sums), tuple(parameters), totals.seconds, Totals.size(layout))


def _ratios(sums: Tensor) -> tuple[float | None, float]:
    """(projection, bound) from ⟨a, c⟩, ⟨c, c⟩ and ⟨what rounding can do, |c|⟩."""
    along, squared, rounding = sums.tolist()
    if squared == 0:
        return None, 0.0
    return along / squared, rounding / squared


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; they become null."""
    return value if value is None or math.isfinite(value) else None


def _rounded(rate: float, dtype: torch.dtype) -> float:
    """The learning rate as the step multiplies with it."""
    return rate if dtype is torch.float64 else torch.tensor(rate, dtype=torch.float32).item()
