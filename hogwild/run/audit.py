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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.run.saved.metrics import finite_or_none
from hogwild.shared.layout import Layout
from hogwild.shared.totals import Totals

_NO_STEP = "gradients were computed, and their steps add up to zero, as at a learning rate of 0"


@dataclass(frozen=True)
class ParameterAudit:
    """One parameter's account.

    Attributes:
        name: of the parameter.
        projection: ⟨applied, computed⟩ ÷ ⟨computed, computed⟩; None where no gradient was computed, or its steps add
            up to zero; NaN where one was not finite.
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
            {**asdict(one), "projection": finite_or_none(one.projection), "bound": finite_or_none(one.bound)}
            for one in self.parameters
        ]
        own = {
            "projection": finite_or_none(self.projection),
            "bound": finite_or_none(self.bound),
            "parameters": parameters,
        }
        return {**asdict(self), **own, "whole": self.whole, "worst": self.worst.name}

    def __str__(self) -> str:
        """The audit in one line."""
        return self.summary()

    def summary(self) -> str:
        """One line for a person."""
        if self.projection is None:
            computed = any(parameter.updates for parameter in self.parameters)
            return _NO_STEP if computed else "no gradient was computed"
        if not math.isfinite(self.projection):
            return "some computed gradients were not finite"
        share = f"{100 * self.projection:.7g} % of the computed gradient was applied"
        if self.whole:
            return f"{share}; rounding alone explains up to ± {100 * self.bound:.1g} %"
        worst = self.worst
        return f"{share} (worst: {worst.name}, {100 * (worst.projection or 0):.6g} %)"


def why_not(
    parameters: Layout, *, kernel: bool, compensates: bool, plain_sgd: bool, clips: bool, skips_sets: bool
) -> str | None:
    """Why a run cannot be audited; None where the step is p ← p − lr g on real numbers, as it must be.

    `kernel`: a kernel trains, which tells no gradient. `skips_sets`: micro-batches that were computed are left out on
    purpose, with another of their set.
    """
    if kernel:
        return "a kernel steps by itself, and tells no gradient"
    if compensates:
        return "stale gradients are compensated, by momentum and other steps (compensation='none' leaves both alone)"
    if not plain_sgd:
        return "the optimizer is not plain SGD, without momentum and weight decay"
    if clips:
        return "clip_grad_norm changes gradients after they were computed"
    if skips_sets:
        return "on_nonfinite='skip' leaves out micro-batches that were computed, with another of their set"
    others = [entry.name for entry in parameters.entries if not entry.dtype.is_floating_point]
    return f"{others[0]} is complex" if others else None


def close_account(layout: Layout, totals: Totals, initial: Sequence[Tensor], final: Sequence[Tensor]) -> Audit:
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
