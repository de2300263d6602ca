"""`ordered`: update u is computed on exactly version u − τ, and versions are made in the order of the updates.

`hogwild.rules.combining` has the protocol; here an update is one ticket.

Where a kernel trains tables, the slot of a ticket holds rows in place of a gradient:

    rows at version u − τ → slot → trained there → they are there → row += what became of it − row at u − τ

Nothing is copied in between. What of the invariant there is new: a row at version u − τ is still to be read when
version u + 1 is made, for the log of that version takes the place of one that version u − τ does not need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from numpy.typing import NDArray

from hogwild.errors import ArgumentError
from hogwild.kernels.trained_rows import TrainedRows
from hogwild.rules.base import FRESH, Age
from hogwild.rules.combining import Combining
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Hook


class Ordered(Combining):
    """`torch.autograd.grad` on exactly version u − τ; the next version in update order."""

    name: ClassVar[str] = "ordered"
    summary: ClassVar[str] = "computed on the version τ updates old; the next version, in update order"

    def __init__(self, staleness: int = 1, compensation: str = "auto") -> None:
        if staleness < 0:
            raise ArgumentError(f"staleness {staleness} is negative; 0 is serial training, 1 keeps two workers busy")
        if compensation not in ("none", "auto"):
            raise ArgumentError(
                f"compensation {compensation!r} is not for ordered, which knows τ; 'auto' and 'none' are"
            )
        self.staleness = staleness
        self.compensation = compensation

    def ticket(self, number: int, total: int) -> Ticket:  # noqa: ARG002
        """An update of its own."""
        return Ticket(number, number, number)

    def made_up_for(self, workers: int) -> Age:  # noqa: ARG002
        """τ."""
        return Age(self.staleness) if self.compensation == "auto" else FRESH

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:
        """τ + 1 workers are busy."""
        return {"staleness": max(1, workers - 1)}

    @property
    def most_workers(self) -> int:
        """τ + 1."""
        return self.staleness + 1

    def check(self, workers: int) -> None:
        """More than τ + 1 workers cannot be busy."""
        if workers > self.most_workers:
            raise ArgumentError(
                f"{workers} workers are over the {self.most_workers} that staleness {self.staleness} keeps busy; "
                f"set staleness={workers - 1} (it changes the result) or workers={self.most_workers}"
            )

    def detach(self) -> None:
        """Let go of the tables too."""
        self.__dict__.pop("_trained", None)
        super().detach()

    # --- rows that a kernel trains

    @cached_property
    def _trained(self) -> dict[int, TrainedRows]:
        return {i: TrainedRows(table) for i, table in self.state.tables.items()}

    @property
    def lends(self) -> bool:
        """Rows of tables that are kept by version, which do not travel between machines."""
        return bool(self.state.tables) and not self.control.dealing.several

    def lend(self, ticket: Ticket, rows: Mapping[int, NDArray[Any]]) -> Mapping[int, NDArray[Any]]:
        """Rows at version u − τ, in the slot of the ticket."""
        version = self._read_by(ticket.update)
        lent = self._slot(ticket).room(rows)
        for i, values in lent.items():
            self._trained[i].read(rows[i], version, values)
        return lent

    def take_back(self, ticket: Ticket, loss: float) -> None:
        """Say that the rows are there, and make what versions can be made."""
        slot, seat = self._slot(ticket), self.seat
        seat.pause(Hook.WRITING)
        usable = math.isfinite(loss) or seat.ignores_nonfinite(ticket.update)
        slot.words[slot.STATUS] = slot.TRAINED if usable else slot.NOT_FINITE
        self._stamp(ticket, loss, self._read_by(ticket.update))
        self.combine()

    def _make_version(self, version: int, parts: Sequence[GradientSlot]) -> None:
        (part,) = parts
        if part.words[part.STATUS] != part.TRAINED:
            super()._make_version(version, parts)
            return
        self.write_version(version, version, self.place(version), self.place(version + 1), None)
        self.seat.pause(Hook.WRITING)
        if self._write(version, part):
            self._publish(version, part.words[part.WORKER], part.words[part.VERSION], part.loss)
            return
        part.words[part.STATUS] = part.NOT_FINITE  # what is written lies in logs, for who reads this version
        super()._make_version(version, parts)

    def _write(self, version: int, part: GradientSlot) -> bool:
        """Add to the version after this one what became of the rows that were lent. False: they are not finite."""
        read, check = part.words[part.VERSION], not self.seat.ignores_nonfinite(version)
        changed = [(self._trained[i], rows, values, len(rows) // 2) for i, (rows, values) in part.named().items()]
        for table, rows, values, half in changed:
            if not table.write(version + 1, rows[:half], read, values[:half], check=check):
                return False
        self.seat.pause(Hook.LOGGED)
        return all(
            table.write(version + 1, rows[n:], read, values[n:], check=check) for table, rows, values, n in changed
        )
