"""What is done so that a stale gradient costs no accuracy: momentum stretched, spikes compensated, weights predicted.

A gradient that is d updates old, d = min(u, τ), is applied to weights that d others have moved since. So, with the
momentum μ′ = 1 − (1 − max(μ, 0.9)) / (τ + 1), which remembers S = (1 − μ) / (1 − μ′) times as long,

    SGD           v ← μ′ v + g              s = μ′ᵈ v + g (1 − μ′ᵈ) / (1 − μ′)       w ← w − η′ s
                  the next gradient is computed on   w − η′ (1 + τ) s,   where w was before this step
                  η′ = η / S × min(1, √S / (τ + 1)), so √(τ + 1) times less far in the end where μ is 0.9 or more
    Adam, AdamW   β₁ is stretched as it is, S = τ + 1
                  m ← β₁′ m + (1 − β₁′) g   s = β₁′ᵈ m + (1 − β₁′ᵈ) g in place of m      all else as it is
                  η′ = η / √(τ + 1), and AdamW's weight decay times √(τ + 1), so that their product is what it was

The spike in s is what the gradient would have added to the velocity in the d updates that it has missed (Kosson et al.
2020, arXiv 2003.11666), as Nesterov's momentum does for one. A velocity that remembers for longer changes more slowly
than what it is computed on moves (Ajanthan et al. 2025, arXiv 2505.01099); and the weights that a gradient is computed
on are where the velocity says they will be once it is applied (Chen et al. 2018, arXiv 1809.02839; Kosson et al.).

Where the loss is curved, none of this makes a delay harmless: with the curvature λ a step stays stable only up to some
η λ, which falls with τ. A longer memory raises that limit in proportion, a smaller step too; `hogwild run staleness`
shows what both cost. Weight decay enters g with the weights that it is applied to. With τ = 0 nothing of this is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

_LEAST_MOMENTUM = 0.9  # what is stretched of SGD without momentum, or with less


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
        if type(optimizer) is torch.optim.SGD and all(map(_forgets, optimizer.param_groups)):
            made = [_for_sgd(group, staleness) for group in optimizer.param_groups]
        elif type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
            made = [_for_adam(group, staleness) for group in optimizer.param_groups]
        else:
            return None
        options, scales = (tuple(column) for column in zip(*made, strict=True))
        return cls(
            staleness,
            isinstance(optimizer, torch.optim.SGD),
            options,
            scales,
            tuple(dict.fromkeys(_changes(optimizer, options, scales))),
        )

    def apply(self, optimizer: Optimizer) -> None:
        """Set the options of an optimizer with the caller's; `delay` and `ahead` are read by the written steps."""
        for group, own, scale in zip(optimizer.param_groups, self.options, self.scales, strict=True):
            group.update(own, lr=group["lr"] * scale, delay=self.delay(0), ahead=self.staleness)

    def delay(self, update: int) -> int:
        """How many updates old that update's gradient is."""
        return min(update, self.staleness)


_Made = tuple[dict[str, Any], float]  # options, and by what the learning rate is multiplied


def _forgets(group: Mapping[str, Any]) -> bool:
    """True for SGD as studied: whose velocity fades, and takes each gradient whole."""
    return group["momentum"] < 1 and not group["dampening"]


def _for_sgd(group: Mapping[str, Any], staleness: int) -> _Made:
    momentum = _stretched(max(group["momentum"], _LEAST_MOMENTUM), staleness)
    longer = (1 - group["momentum"]) / (1 - momentum)
    return {"momentum": momentum}, min(1.0, math.sqrt(longer) / (staleness + 1)) / longer


def _for_adam(group: Mapping[str, Any], staleness: int) -> _Made:
    beta1, beta2 = group["betas"]
    options: dict[str, Any] = {"betas": (_stretched(beta1, staleness), beta2)}
    if group["weight_decay"] and group["decoupled_weight_decay"]:
        options["weight_decay"] = group["weight_decay"] * math.sqrt(staleness + 1)
    return options, 1 / math.sqrt(staleness + 1)


def _stretched(momentum: float, staleness: int) -> float:
    """The momentum that remembers τ + 1 times as long."""
    return 1 - (1 - momentum) / (staleness + 1)


def _changes(optimizer: Optimizer, options: Sequence[Mapping[str, Any]], scales: Sequence[float]) -> Iterator[str]:
    for group, own, scale in zip(optimizer.param_groups, options, scales, strict=True):
        for name, value in {**own, "lr": group["lr"] * scale}.items():
            yield f"{name} {_short(group[name])} → {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.6g}"
