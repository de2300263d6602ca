"""The six rules, by name, and the protocol in which they and yours are written.

base                   the protocol: read → gradient → commit
registry               which rules there are
hogwild, locked, racing       in place (in_place, any_age)
ordered, sync, snapshot       by versions (versioned); combining is what makes those of the first two, in_shards how
                       several workers make one
gradients, row_gradients      a loss → gradients
rechecks, replayed     computed a second time: some of them in the run, all of them from its journal
averaging              what workers do for machines that train apart

Each is imported when it is first asked for, so that whoever wants the names alone does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hogwild.rules.registry import NAMES, RULES, make_rule, rule_name

if TYPE_CHECKING:
    from hogwild.rules.base import Gradient, Rule
    from hogwild.rules.hogwild import Hogwild
    from hogwild.rules.locked import Locked
    from hogwild.rules.ordered import Ordered
    from hogwild.rules.racing import Racing
    from hogwild.rules.snapshot import Snapshot
    from hogwild.rules.sync import Sync

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
    "rule_name",
]

_HOMES = {entry.class_name: entry.module for entry in RULES.values()}
_HOMES |= {"Gradient": "hogwild.rules.base", "Rule": "hogwild.rules.base"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hogwild.rules' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
