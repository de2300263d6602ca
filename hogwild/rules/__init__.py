"""The six rules, by name, and the protocol in which they and yours are written."""

from __future__ import annotations

from hogwild.errors import ArgumentError
from hogwild.rules.base import Gradient, Rule
from hogwild.rules.locked import Locked
from hogwild.rules.lockfree import Hogwild
from hogwild.rules.ordered import Ordered
from hogwild.rules.racing import Racing
from hogwild.rules.snapshot import Snapshot
from hogwild.rules.sync import Sync

NAMES = ("racing", "hogwild", "locked", "snapshot", "ordered", "sync")

__all__ = [
    "NAMES",
    "Gradient",
    "Hogwild",
    "Locked",
    "Ordered",
    "Racing",
    "Rule",
    "Snapshot",
    "Sync",
    "make_rule",
]


def make_rule(update: str | Rule, *, staleness: int, micro_batches: int, gradient: str | None) -> Rule:
    """The rule of that name, or the given rule itself.

    Raises:
        ArgumentError: no rule has that name, or it cannot take its gradient that way.
    """
    rule = update if isinstance(update, Rule) else _by_name(update, staleness, micro_batches)
    if gradient is None:
        return rule
    if gradient not in ("backward", "grad"):
        raise ArgumentError(f"gradient {gradient!r} is not known; 'backward' and 'grad' are")
    if gradient == "grad" and isinstance(rule, Racing):
        raise ArgumentError("gradient 'grad' leaves .grad alone, and racing is a race for .grad; it needs 'backward'")
    rule.gradient_by = gradient
    return rule


def rule_name(update: str | Rule) -> str:
    """The name of a rule that is given by name or as itself.

    Raises:
        ArgumentError: it is neither.
    """
    if isinstance(update, Rule):
        return update.name
    if isinstance(update, str):
        return update
    raise ArgumentError(f"update {update!r} is not a rule; the rules are {', '.join(NAMES)}, or a Rule of yours")


def _by_name(name: str, staleness: int, micro_batches: int) -> Rule:
    match name:
        case "racing":
            return Racing()
        case "hogwild":
            return Hogwild()
        case "locked":
            return Locked()
        case "snapshot":
            return Snapshot()
        case "ordered":
            return Ordered(staleness)
        case "sync":
            return Sync(micro_batches)
    raise ArgumentError(f"update {name!r} is not a rule; the rules are {', '.join(NAMES)}")
