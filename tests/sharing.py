"""Rules whose versions are made in shards whenever they can be, also where nobody is idle."""

from __future__ import annotations

import random
from typing import Any

import hogwild
from hogwild.rules.ordered import Ordered
from hogwild.rules.sync import Sync


class Lays(Ordered):
    """Every gradient waits, also where its turn has come, so that a version is made by anyone."""

    def _apply_at_once(self, ticket: hogwild.Ticket, gradient: Any) -> bool:
        return False

    def _others_are_idle(self) -> bool:
        return True


class SharesAll(Sync):
    """Its gradients wait anyhow."""

    def _others_are_idle(self) -> bool:
        return True


class SharesSome(Lays):
    """Whether a version is shared is a matter of chance."""

    def _others_are_idle(self) -> bool:
        return random.random() < 0.5


class SharesSomeOfAll(SharesAll):
    """Likewise."""

    def _others_are_idle(self) -> bool:
        return random.random() < 0.5
