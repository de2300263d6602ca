"""The settings that a run was begun with, and is held to: config.toml may have been edited since."""

from __future__ import annotations

from typing import Any

from hogwild.config import DECIDE_BITS, RunConfig
from hogwild.run.saved.metrics import finite_or_word, json_values

OF_THE_JUDGED = ("evaluate_every",)
"""Held to as well where a run keeps its best version or may be stopped: of which versions it may keep one, or end."""
# What of the rest there is, is looked at itself: the length, the optimizer's groups, and the data, which may be moved.
_OTHERS = ("epochs", "updates", "limit_updates", "groups", "data")


def begun_with(config: RunConfig) -> dict[str, Any]:
    """Those that decide bits, and when it is evaluated, as JSON has them."""
    names = (*DECIDE_BITS, *OF_THE_JUDGED)
    settings = {name: getattr(config, name) for name in names if name not in _OTHERS}
    found: dict[str, Any] = json_values(settings, finite_or_word)
    return found
