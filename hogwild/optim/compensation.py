"""What is done so that a stale gradient costs no accuracy: momentum stretched, spikes compensated, weights predicted.

A gradient that is d updates old, d = min(u, τ), is applied to weights that d others have moved since. So

    SGD           v ← μ′ v + g              s = μ′ᵈ v + g (1 − μ′ᵈ) / (1 − μ′)       w ← w − η′ s
                  the next gradient is computed on   w − η′ (1 + τ) s,   where w was before this step
                  μ′ = 1 − 1 / M, where M is the memory in updates: at first M₀ = (τ + 1) / (1 − max(μ, 0.9)), and
                  later a fifth of the updates so far, until M is so long that η′ M = η / (1 − μ)
                  η′ = η / S, where S = (1 − μ) M₀, but at most 1 / (3 λ (τ + 1)²), or 1 / (λ (τ + 1)²) for a net
                  that is normalised
    Adam, AdamW   β₁′ = 1 − (1 − β₁) / (τ + 1)
                  m ← β₁′ m + (1 − β₁′) g   s = β₁′ᵈ m + (1 − β₁′ᵈ) g in place of m      all else as it is
                  η′ = η × √(2 / (η λ (τ + 1))), but neither over η nor under η / (τ + 1)
                  AdamW's weight decay times η / η′, so that their product is what it was

The spike in s is what the gradient would have added to the velocity in the d updates that it has missed (Kosson et al.
2020, arXiv 2003.11666), as Nesterov's momentum does for one. A velocity that remembers for longer changes more slowly
than what it is computed on moves (Ajanthan et al. 2025, arXiv 2505.01099); and the weights that a gradient is computed
on are where the velocity says they will be once it is applied (Chen et al. 2018, arXiv 1809.02839; Kosson et al.).

Where the loss is curved, none of this makes a delay harmless: with a curvature λ these steps stay stable, whatever the
memory, up to η′ λ of about 1 / (τ + 1)² (`hogwild.optim.stability`). λ is measured where the run begins, and a factor
of 3 is left for what it grows to. None is where all weights but the last layer's go into a normalisation: a step that
is too long makes such weights longer, and by that the loss less curved in them (Arora et al. 2019, arXiv 1812.03981),
and what the last layer sees keeps its length. What shorter steps lose in the end, the longer memory gives back: as many
updates by one gradient as without a delay, for which a training that is at its beginning has no time yet. For Adam, λ
is that of the loss in units of Adam's own steps: over the parameters, each times the root of the size of its gradient
(Cohen et al. 2022, arXiv 2207.14484, call it the preconditioned sharpness). Its rate is left as it is up to where, with
β₁ = 0.9 and that delay, Adam is about stable on a quadratic, and then lowered by a root alone, for its steps shorten by
themselves where gradients grow. Where λ is not known, η′ is η / S × √S / (τ + 1), and Adam's η / √(τ + 1). SGD's is at
most that, too, where τ is a mean, and some gradients are older.

Weight decay enters g with the weights that it is applied to. With τ = 0 nothing of this is done, nor where the steps of
all groups are small as they are set: SGD's where η λ is at most half of what its own momentum bears at that delay,
Adam's where η λ (τ + 1) is at most a tenth of what leaves its rate as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from hogwild.optim.stability import Curvature, largest_stable_step

_LEAST_MOMENTUM = 0.9  # what is stretched of SGD without momentum, or with less
_YOUNG = 5  # times as many updates as the velocity remembers have been made, before it remembers more
_SMALL = 0.5  # of the largest stable step; an own step of SGD up to that is left as it is
_LEAST_RATE = 1e-30  # that is divided by; a rate may be 0
_FREE = 2  # lr × λ × (τ + 1), up to which Adam's rate is left as it is
_SMALL_OF_ADAM = 0.1  # of that; up to there so is β₁, whose longer memory would be slower and make up for nothing


@dataclass(frozen=True)
class Instead:
    """What a parameter group gets in place of its own options: `options`, its learning rate times `scale`, and, where
    its momentum grows, the shortest and the longest memory in updates. `curvature`: that for which the rate is as low
    as it is, if any."""

    options: Mapping[str, Any]
    scale: float
    memory: tuple[float, float] | None = None
    curvature: Curvature | None = None

    def momentum(self, update: int) -> dict[str, float]:
        """That of an update, where it grows; otherwise nothing."""
        if self.memory is None:
            return {}
        shortest, longest = self.memory
        return {"momentum": 1 - 1 / min(longest, max(shortest, update / _YOUNG))}


@dataclass(frozen=True)
class Compensation:
    """What an optimizer gets in place of its own options, under a staleness.

    Attributes:
        staleness: τ, in updates.
        predicts: what is read is predicted, and the parameters themselves are part of the optimizer's state.
        groups: for each parameter group, what it gets.
        changes: the same in words, each told once.
    """

    staleness: int
    predicts: bool
    groups: tuple[Instead, ...]
    changes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        optimizer: Optimizer,
        staleness: int,
        curvature: Curvature | None = None,
        rates: Sequence[float] | None = None,
        *,
        varies: bool = False,
    ) -> Compensation | None:
        """That of an optimizer whose step is written here; None where there is nothing to compensate, for its steps are
        small or its gradients not stale, or nobody has studied how.

        Args:
            optimizer: with the caller's options.
            staleness: τ, in updates.
            curvature: of the loss where the run begins (`hogwild.run.trial.curvature`); None where it is not known.
            rates: the largest learning rate that each group will have; its own where there are none.
            varies: gradients are τ updates old on average, and some are older.
        """
        if not staleness:
            return None
        groups = optimizer.param_groups
        is_sgd = type(optimizer) is torch.optim.SGD and all(map(_forgets, groups))
        if not is_sgd and type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
            return None
        largest = list(zip(groups, rates or [group["lr"] for group in groups], strict=True))
        if curvature is not None:
            steps = [(group, rate * curvature.largest) for group, rate in largest]
            if all(_is_small(group, staleness, step) for group, step in steps):
                return None
        if is_sgd:
            made = [_for_sgd(group, staleness, curvature, rate, varies) for group, rate in largest]
        else:
            made = [_for_adam(group, staleness, curvature, rate) for group, rate in largest]
        changes = real_changes(dict.fromkeys(_changes(optimizer, made)))
        return cls(staleness, isinstance(optimizer, torch.optim.SGD), tuple(made), changes)

    @property
    def scales(self) -> tuple[float, ...]:
        """For each parameter group, by what its learning rate is multiplied."""
        return tuple(group.scale for group in self.groups)

    def apply(self, optimizer: Optimizer) -> None:
        """Set the options of an optimizer with the caller's, as they are at the first update."""
        for group, instead in zip(optimizer.param_groups, self.groups, strict=True):
            group.update(instead.options, lr=group["lr"] * instead.scale, ahead=self.staleness)
        self.set_for(0, optimizer)

    def set_for(self, update: int, optimizer: Optimizer) -> None:
        """Set what changes from update to update; `delay`, how many updates old a gradient is, and `ahead` are read by
        the written steps."""
        for group, instead in zip(optimizer.param_groups, self.groups, strict=True):
            group.update(instead.momentum(update), delay=min(update, self.staleness))


def _forgets(group: Mapping[str, Any]) -> bool:
    """True for SGD as studied: whose velocity fades, and takes each gradient whole."""
    return group["momentum"] < 1 and not group["dampening"]


def _is_small(group: Mapping[str, Any], staleness: int, step: float) -> bool:
    if "betas" in group:
        return step * (staleness + 1) <= _SMALL_OF_ADAM * _FREE
    return step <= _SMALL * largest_stable_step(staleness, group["momentum"], group["nesterov"])


def _for_sgd(
    group: Mapping[str, Any], staleness: int, curvature: Curvature | None, rate: float, varies: bool
) -> Instead:
    own = 1 / (1 - group["momentum"])
    shortest = (staleness + 1) / (1 - max(group["momentum"], _LEAST_MOMENTUM))
    longer = shortest / own
    unknown = curvature is None or varies
    shorter, binds = min(1.0, math.sqrt(longer) / (staleness + 1)) if unknown else 1.0, False
    if curvature is not None:
        most = curvature.grows * curvature.largest
        stable = longer / (most * max(rate, _LEAST_RATE) * (staleness + 1) ** 2)
        shorter, binds = min(shorter, stable), stable < shorter
    memory = shortest, shortest / shorter
    return Instead({"momentum": 1 - 1 / shortest}, shorter / longer, memory, curvature if binds else None)


def _for_adam(group: Mapping[str, Any], staleness: int, curvature: Curvature | None, rate: float) -> Instead:
    beta1, beta2 = group["betas"]
    options: dict[str, Any] = {"betas": (1 - (1 - beta1) / (staleness + 1), beta2)}
    if curvature is None:
        scale = 1 / math.sqrt(staleness + 1)
    else:
        over = max(1.0, curvature.largest * rate * (staleness + 1) / _FREE)
        scale = max(1 / math.sqrt(over), 1 / (staleness + 1))
    if group["weight_decay"] and group["decoupled_weight_decay"]:
        options["weight_decay"] = group["weight_decay"] / scale
    return Instead(options, scale, curvature=curvature if scale < 1 else None)


def _changes(optimizer: Optimizer, made: Sequence[Instead]) -> Iterator[str]:
    for group, instead in zip(optimizer.param_groups, made, strict=True):
        for name, value in {**instead.options, "lr": group["lr"] * instead.scale}.items():
            more = ""
            if name == "momentum" and instead.memory is not None and instead.memory[0] < instead.memory[1]:
                shortest, longest = instead.memory
                more = f" … {_short(1 - 1 / longest)}, from update {round(shortest * _YOUNG):,} on"
            elif name == "lr" and instead.curvature is not None:
                more = f", for a curvature of {instead.curvature.largest:.3g}"
                if "betas" not in instead.options and instead.curvature.grows == 1:
                    more += ", which does not grow"
            yield f"{name} {_short(group[name])} → {_short(value)}{more}"


def real_changes(words: Iterable[Any]) -> tuple[str, ...]:
    """Of what is said to have been changed, that whose two values are not the same as they are shown."""
    return tuple(one for one in map(str, words) if not _is_the_same(one))


def _is_the_same(words: str) -> bool:
    before, arrow, after = words.partition(" ")[2].partition(" → ")
    return bool(arrow) and (after == before or after.startswith(f"{before}, "))


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.6g}"
