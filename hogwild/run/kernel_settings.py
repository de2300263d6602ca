"""Which settings and rules a run has that a kernel trains, and which mean nothing there."""

from __future__ import annotations

from functools import partial

import torch

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.rules.base import Rule
from hogwild.rules.registry import names_where, quoted
from hogwild.run.job import Loss

kernel_steps = partial(torch.optim.SGD, lr=1.0)
"""What applies a kernel's differences where they are committed: p ← p − (before − after)."""

_IDLE = ("accumulate", "gradient", "clip_grad_norm", "ema", "groups")
_OPTIMIZERS = ("", "sgd")


def refuse_what_kernels_have_not(config: RunConfig, loss: Loss | None) -> None:
    """Refuse settings of a gradient and of an optimizer: a kernel steps by itself.

    Raises:
        ArgumentError: one of them is set.
    """
    if loss is not None:
        raise ArgumentError(f"loss {loss!r} given beside a kernel, whose step is what trains; leave it out")
    if config.optimizer not in _OPTIMIZERS:
        raise ArgumentError(f"optimizer {config.optimizer!r} given, and a kernel steps by itself; leave it out")
    for name in _IDLE:
        value = getattr(config, name)
        if value != getattr(RunConfig, name, None):
            raise ArgumentError(f"{name} {value} given, and a kernel has no gradient that it could be done to")


def refuse_rules_without_kernels(rule: Rule, config: RunConfig) -> None:
    """Refuse a rule under which no kernel can train, or a setting that it cannot keep.

    Raises:
        ArgumentError: the rule shares gradients, or cannot leave an update out.
    """
    if rule.shares_gradients:
        having = quoted(names_where(lambda one: not one.shares_gradients), "or")
        raise ArgumentError(f"{rule.name} races for a shared .grad, and a kernel has none; use update={having}")
    if not rule.versioned and config.on_nonfinite == "skip":
        raise ArgumentError(
            f"on_nonfinite 'skip' given, and under {rule.name} a kernel has written its rows when its loss is known; "
            f"'raise' works, and rules that keep versions can skip"
        )
