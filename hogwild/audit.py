"""Audit: what share of the gradient that was computed was applied to the model, parameter by parameter.

    each worker     c = Σ −lr g, and what bounds the rounding of the steps; private, in float64, a term per update
    in the end      the sums over the workers, shared, under the commit lock
    the parent      a = final − initial;  projection = ⟨a, c⟩ ÷ ⟨c, c⟩

The worker's loop keeps the account, not the rule, so that it does not depend on the rule being right. It holds for
plain SGD, whose step is p ← p − lr g; another optimizer, or clipping, has none.

A step d = −lr g rounds by u m at most, u being half of the dtype's epsilon and m = |p| + |d|. Rounding errors that are
independent and centred add up to no more than λ u √Σ m² with probability 1 − 2 exp(−λ²/2) (Higham & Mary 2019,
doi:10.1137/18M1226312; λ = 6 here, 3e-8). Those of a step that is small beside the spacing of floats at p are neither:
the step may be lost whole, and so it is counted whole (`lost`).

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

_LAMBDA = 6.0
_SMALL = 16  # a step of fewer rounding units of m is small


@dataclass(frozen=True)
class ParameterAudit:
    """One parameter's account.

    Attributes:
        name: of the parameter.
        projection: ⟨applied, computed⟩ ÷ ⟨computed, computed⟩; None where no gradient was computed, or a zero one.
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
        return -self.bound if self.projection is None else abs(self.projection - 1) - self.bound


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
        return {**asdict(self), "whole": self.whole, "worst": self.worst.name}

    def summary(self) -> str:
        """One line for a person."""
        if self.projection is None:
            return "no gradient was computed"
        if self.whole:
            return f"all of the computed gradient was applied, up to rounding ({self.bound:.1g})"
        worst = self.worst
        told = "" if worst.projection is None else f" (worst: {worst.name}, {100 * worst.projection:.6g} %)"
        return f"{100 * self.projection:.7g} % of the computed gradient was applied{told}"


class Totals:
    """The workers' accounts together, in shared memory.

    Of parameter i: `computed[i]` is Σ d, `squares[i]` Σ m² and `lost[i]` Σ |d| of small steps, float64 of shape [V];
    `updates[i]` is how many gradients reached it.
    """

    _REPORTED, _NANOSECONDS, _HEAD = 0, 1, 2

    def __init__(self, layout: Layout, arena: Arena, offset: int) -> None:
        numels = [entry.numel for entry in layout.entries]
        self.words = arena.words(offset, self._HEAD)
        self.updates = arena.words(offset + 8 * self._HEAD, len(numels))
        values = arena.tensor(offset + 8 * (self._HEAD + len(numels)), 3 * sum(numels), torch.float64)
        computed, squares, lost = torch.split(values, sum(numels))
        self.computed = torch.split(computed, numels)
        self.squares = torch.split(squares, numels)
        self.lost = torch.split(lost, numels)

    @classmethod
    def size(cls, layout: Layout) -> int:
        """Bytes that it takes in the arena."""
        return 8 * (cls._HEAD + sum(1 + 3 * entry.numel for entry in layout.entries))

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
            self.squares[i].add_(account.squares[i])
            self.lost[i].add_(account.lost[i])
            self.updates[i] += account.updates[i]
        self.words[self._NANOSECONDS] += account.nanoseconds
        self.words[self._REPORTED] += 1


class Account:
    """What one worker computed, in memory of its own; the fields are those of `Totals`."""

    def __init__(self, layout: Layout) -> None:
        self.computed, self.squares, self.lost = (
            [torch.zeros(entry.numel, dtype=torch.float64) for entry in layout.entries] for _ in range(3)
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
                self._enter_rows(i, gradient.coalesce(), parameter, rate)
            else:
                self._enter(i, None, gradient.reshape(-1).double().mul_(-rate), parameter.reshape(-1))
            self.updates[i] += 1
        self.nanoseconds += time.thread_time_ns() - began

    def _enter_rows(self, i: int, gradient: Tensor, parameter: Tensor, rate: float) -> None:
        rows, width = gradient.indices()[0], math.prod(gradient.shape[1:])
        places = (rows.unsqueeze(1) * width + torch.arange(width)).reshape(-1)
        self._enter(i, places, gradient.values().reshape(-1).double().mul_(-rate), parameter[rows].reshape(-1))

    def _enter(self, i: int, places: Tensor | None, steps: Tensor, values: Tensor) -> None:
        """Steps d to all values of parameter i, or to those at `places`, which now have these values."""
        sizes = steps.abs()
        reach = values.abs() + sizes
        unit = torch.finfo(values.dtype).eps / 2
        small = torch.where(sizes < _SMALL * unit * reach, sizes, 0.0)
        for total, terms in ((self.computed, steps), (self.squares, reach * reach), (self.lost, small)):
            if places is None:
                total[i].add_(terms)
            else:
                total[i].index_add_(0, places, terms)


def can_audit(parameters: Layout, *, plain_sgd: bool, clips: bool) -> bool:
    """True where the step is p ← p − lr g on real numbers, as it must be for an audit."""
    return plain_sgd and not clips and all(entry.dtype.is_floating_point for entry in parameters.entries)


def settle(layout: Layout, totals: Totals, initial: Sequence[Tensor], final: Sequence[Tensor]) -> Audit:
    """Close the account: compare what all workers computed with what became of the parameters."""
    parameters: list[ParameterAudit] = []
    sums = torch.zeros(4, dtype=torch.float64)
    for i, entry in enumerate(layout.entries):
        applied = final[i].detach().reshape(-1).double() - initial[i].detach().reshape(-1).double()
        computed = totals.computed[i]
        unit = torch.finfo(entry.dtype).eps / 2
        part = torch.stack(
            [
                applied @ computed,
                computed @ computed,
                unit**2 * (totals.squares[i] @ computed.square()),
                totals.lost[i] @ computed.abs(),
            ]
        )
        sums += part
        parameters.append(ParameterAudit(entry.name, *_ratios(part), totals.updates[i]))
    return Audit(*_ratios(sums), tuple(parameters), totals.seconds, Totals.size(layout))


def _ratios(sums: Tensor) -> tuple[float | None, float]:
    """(projection, bound) from ⟨a, c⟩, ⟨c, c⟩, the variance that rounding may have at most, and what it may lose."""
    along, squared, variance, lost = sums.tolist()
    if not (squared > 0 and math.isfinite(squared)):
        return None, 0.0
    return along / squared, (_LAMBDA * math.sqrt(variance) + lost) / squared


def _rounded(rate: float, dtype: torch.dtype) -> float:
    """The learning rate as the step multiplies with it."""
    return rate if dtype is torch.float64 else torch.tensor(rate, dtype=torch.float32).item()
