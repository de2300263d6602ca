"""What is done so that a stale gradient costs no accuracy: momentum stretched, spikes compensated, weights predicted.

A gradient that is d updates old, d = min(u, τ), is applied to weights that d others have moved since. With μ′ the
stretched momentum and η′ = η (1 − μ′) / (1 − μ), so that a gradient moves the weights as far in the end as it did:

    SGD           v ← μ′ v + g              s = μ′ᵈ v + g (1 − μ′ᵈ) / (1 − μ′)       w ← w − η′ s
                  the next gradient is computed on   w − η′ (1 + τ) s,   where w was before this step
    Adam, AdamW   m ← β₁′ m + (1 − β₁′) g   s = β₁′ᵈ m + (1 − β₁′ᵈ) g in place of m      all else as it is

The spike in s is what the gradient would have added to the velocity in the d updates that it has missed (Kosson et al.
2020, arXiv 2003.11666), as Nesterov's momentum does for one. A velocity that remembers for longer changes more slowly
than what it is computed on moves (Ajanthan et al. 2025, arXiv 2505.01099); and the weights that a gradient is computed
on are where the velocity says they will be once it is applied (Chen et al. 2018, arXiv 1809.02839; Kosson et al.).

Weight decay enters g with the weights that it is applied to. With τ = 0 nothing of this is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

_LEAST_MOMENTUM = 0.9  # what is stretched of SGD without momentum, or with less
_REMEMBERS = 2.0  # times τ + 1 as long as before, for SGD


@dataclass(frozen=True)
class Compensation:
    """What an optimizer gets in place of its own options, under a staleness.

    Attributes:
        staleness: τ, in updates.
        predicts: what is read is predicted, and the parameters themselves are part of the optimizer's state.
        options: for each parameter group, those that are others than its own.
        scales: for each parameter group, by what its learning rate is multiplied.
        changes: the same in words, each told once.
    """

    staleness: int
    predicts: bool
    options: tuple[Mapping[str, Any], ...]
    scales: tuple[float, ...]
    changes: tuple[str, ...]

    @classmethod
    def of(cls, optimizer: Optimizer, staleness: int) -> Compensation | None:
        """That of an optimizer whose step is written here; None where there is nothing to compensate, or nobody has
        studied how."""
        if not staleness:
            return None
        groups = optimizer.param_groups
        if type(optimizer) is torch.optim.SGD and not any(group["dampening"] for group in groups):
            momenta = [_stretched(max(group["momentum"], _LEAST_MOMENTUM), staleness, _REMEMBERS) for group in groups]
            options: tuple[Mapping[str, Any], ...] = tuple({"momentum": new} for new in momenta)
            scales: tuple[float, ...] = tuple(
                (1 - new) / (1 - group["momentum"]) for new, group in zip(momenta, groups, strict=True)
            )
        elif type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
            first = [_stretched(group["betas"][0], staleness) for group in groups]
            options = tuple({"betas": (new, group["betas"][1])} for new, group in zip(first, groups, strict=True))
            scales = (1.0,) * len(groups)
        else:
            return None
        predicts = isinstance(optimizer, torch.optim.SGD)
        return cls(staleness, predicts, options, scales, _changes(groups, options, scales))

    def apply(self, optimizer: Optimizer) -> None:
        """Set the options of an optimizer with the caller's; `delay` and `ahead` are read by the written steps."""
        for group, options, scale in zip(optimizer.param_groups, self.options, self.scales, strict=True):
            group.update(options, lr=group["lr"] * scale, delay=self.delay(0), ahead=self.staleness)

    def delay(self, update: int) -> int:
        """How many updates old that update's gradient is."""
        return min(update, self.staleness)


def _stretched(momentum: float, staleness: int, times: float = 1.0) -> float:
    """The momentum that remembers `times` (τ + 1) as long."""
    return 1 - (1 - momentum) / (times * (staleness + 1))


def _changes(
    groups: Sequence[Mapping[str, Any]], options: Sequence[Mapping[str, Any]], scales: Sequence[float]
) -> tuple[str, ...]:
    told: dict[str, None] = {}
    for group, own, scale in zip(groups, options, scales, strict=True):
        told.update({f"{name} {_short(group[name])} → {_short(value)}": None for name, value in own.items()})
        if scale != 1:
            told[f"lr {_short(group['lr'])} → {_short(group['lr'] * scale)}"] = None
    return tuple(told)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.6g}"
