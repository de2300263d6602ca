"""`replayed`, which no user chooses: the commits of a journal made again, one after another, by one worker.

    ticket k = row k of the journal: gradient of batch `update` on version `version_read`, applied to version k

The ring keeps as many versions as the oldest read needs. Every step is one that the recorded run made, on the same
bits if the record is true, so the result has the bits of the run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import nn

from hogwild.errors import ArgumentError
from hogwild.rules.base import FRESH, Age, Gradient
from hogwild.rules.versioned import Versioned
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Word


class Replayed(Versioned):
    """Replays the rows of a journal, with steps that make up for gradients of the same age. One worker only."""

    name: ClassVar[str] = "replayed"

    def __init__(self, rows: NDArray[Any], made_up_for: Age = FRESH) -> None:
        self._made_up_for = made_up_for
        self._batches = rows["update"].tolist()
        self._reads = rows["version_read"].tolist()
        ages = [k - read for k, read in enumerate(self._reads)]
        if any(age < 0 for age in ages):
            raise ArgumentError("the journal has an update that read a version made after it; it is damaged")
        self._slots = max(ages, default=0) + 2

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """The oldest version that is read, the newest, and all between them."""
        return Needs(slots=self._slots, state_copies=2, logs=self._slots - 1)

    def made_up_for(self, workers: int) -> Age:  # noqa: ARG002
        """What it was in the run."""
        return self._made_up_for

    def check(self, workers: int) -> None:
        """One worker, in the order of the rows."""
        if workers != 1:
            raise ArgumentError(f"{workers} workers cannot replay a journal, whose order is given; 1 can")

    def ticket(self, number: int, total: int) -> Ticket:  # noqa: ARG002
        """The update and the batch that the row names."""
        return Ticket(number, update=self._batches[number], batch=self._batches[number])

    def read(self, ticket: Ticket) -> nn.Module:
        """The version that the row says was read."""
        version = self._reads[ticket.number]
        return self.replica_at(version, version % self._slots)

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Make version k + 1."""
        gathered, k = self.prepare(ticket, gradient), ticket.number
        source, target = k % self._slots, (k + 1) % self._slots
        self.write_version(ticket.update, k, source, target, gathered)
        if gathered is not None:
            self.write_buffers(gradient.version == k, source, target)
        self.state.journal.write(k, ticket.update, self.seat.index, gradient.version, k + 1, gradient.loss)
        self.seat.observe(k + 1, target)
        self.control.publish(Word.HEAD, k + 1)
        return True

    def newest(self, state: SharedState) -> tuple[int, int]:
        """The head."""
        version = state.control.observe(Word.HEAD)
        return version, version % self._slots
