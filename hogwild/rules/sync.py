"""`sync`: update u averages the gradients of M micro-batches, all computed on version u.

`hogwild.rules.combining` has the protocol; here τ is 0, and an update is M tickets, summed in the order of their
numbers. Running averages of normalisation layers are exact for the first micro-batch; the changes of the others are
re-based (see `hogwild.model.buffers.BufferRule`).
What it costs: workers wait for the slowest of a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hogwild.errors import ArgumentError
from hogwild.rules.combining import Combining


class Sync(Combining):
    """`torch.autograd.grad` on M micro-batches of exactly version u; one update from their average."""

    name: ClassVar[str] = "sync"
    summary: ClassVar[str] = "M micro-batches on the newest version; one update from their average"
    staleness: int = 0

    def __init__(self, micro_batches: int = 2) -> None:
        if micro_batches < 1:
            raise ArgumentError(f"micro_batches {micro_batches} is below 1; 2 keeps two workers busy")
        self.tickets_per_update = micro_batches

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:
        """M workers are busy."""
        return {"micro_batches": max(2, workers)}

    @property
    def most_workers(self) -> int:
        """M."""
        return self.tickets_per_update

    def check(self, workers: int) -> None:
        """More than M workers cannot be busy."""
        if workers > self.most_workers:
            raise ArgumentError(
                f"{workers} workers are over the {self.most_workers} micro-batches of an update; set "
                f"micro_batches={workers} (it changes the result) or workers={self.most_workers}"
            )
