"""`ordered`: update u is computed on exactly version u − τ, and versions are made in the order of the updates.

`hogwild.rules.combining` has the protocol; here an update is one ticket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hogwild.config import COMPENSATIONS
from hogwild.errors import ArgumentError
from hogwild.rules.combining import Combining


class Ordered(Combining):
    """`torch.autograd.grad` on exactly version u − τ; the next version in update order."""

    name: ClassVar[str] = "ordered"
    summary: ClassVar[str] = "computed on the version τ updates old; the next version, in update order"

    def __init__(self, staleness: int = 1, compensation: str = "auto") -> None:
        if staleness < 0:
            raise ArgumentError(f"staleness {staleness} is negative; 0 is serial training, 1 keeps two workers busy")
        if compensation not in COMPENSATIONS:
            raise ArgumentError(f"compensation {compensation!r} is not known; {', '.join(COMPENSATIONS)} are")
        self.staleness = staleness
        self.compensation = compensation

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:
        """τ + 1 workers are busy."""
        return {"staleness": max(1, workers - 1)}

    def check(self, workers: int) -> None:
        """More than τ + 1 workers cannot be busy."""
        if workers > self.staleness + 1:
            raise ArgumentError(
                f"{workers} workers are over the {self.staleness + 1} that staleness {self.staleness} keeps busy; "
                f"set staleness={workers - 1} (it changes the result) or workers={self.staleness + 1}"
            )
