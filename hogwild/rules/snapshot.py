"""`snapshot`: whole versions are read, and made first come, first served.

    head   one word: version and the number of its slot
    pin    in each worker's row: the slot it reads, which is the one it made last, or with tables the head as it claims

What holds when workers race: every gradient is computed on one whole version; no step is lost or applied twice; the
journal's rows (update, version read) determine every bit of the run. A ring of workers + 1 slots is enough: at a
commit the other workers pin at most workers − 1 slots and the head is one more, which leaves one to write. Of tables
there is one copy and a ring of logs: who is to reuse a log waits, holding no lock, while another worker still reads a
version that needs it. Who has committed reads none until it has a ticket again, and is waited for by nobody, whatever
its loop does meanwhile. Then it pins the head: it says so → fence → is that still the head? → if not: again. So the
version after the next is made by somebody who sees the pin, and the next one needs neither its slot nor its log.
What does not: which update makes which version is left to chance, so two runs differ.
A commit killed before the head's one store has changed nothing that anybody reads; one killed after it is done.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from hogwild.errors import ArgumentError
from hogwild.optim.gradients import Gathered
from hogwild.rules.any_age import AnyAge
from hogwild.rules.base import Gradient, Seat
from hogwild.rules.versioned import Versioned
from hogwild.shared.exchange import Exchange
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import Control, Settled, Ticket
from hogwild.shared.words import Field, Hook, Phase, Word

_SLOT_BITS = 16
_LOGS = 4  # for each worker


class Snapshot(AnyAge, Versioned):
    """`torch.autograd.grad` on a whole version; the next version under one lock."""

    name: ClassVar[str] = "snapshot"
    summary: ClassVar[str] = "computed on a whole version; the next version, first come, first served"

    def needs(self, workers: int) -> Needs:
        """A ring of workers + 1 slots and two copies of the optimizer's state; logs of tables, so many that who commits
        hardly ever waits for who still reads an old version."""
        return Needs(slots=workers + 1, state_copies=2, logs=_LOGS * workers)

    def begin(self, control: Control, version: int) -> None:
        """The head is this version, in slot 0, which is every worker's first pin."""
        super().begin(control, version)
        control[Word.HEAD] = version << _SLOT_BITS

    def attach(self, seat: Seat) -> None:
        """Pin the newest version for the first read."""
        super().attach(seat)
        with self.control.commit_lock:
            self._pin(*self.newest(self.state))

    def detach(self) -> None:
        """Also a loop that ends before the tickets do reads nothing any more."""
        self.close()
        super().detach()

    def _pin(self, version: int, slot: int) -> None:
        self.control.row(self.seat.index)[Field.PIN] = slot
        self._version = version
        self._adopted = self.control[Word.ADOPTED]

    def _pin_tables(self) -> None:
        """Pin the newest version, with the logs that it needs; no lock is taken, for a commit lasts."""
        row, pinned = self.control.row(self.seat.index), None
        while pinned != (head := self.newest(self.state)):
            self._pin(*head)
            row[Field.READING] = head[0] + 1
            with self.control.alarms.fence:
                pinned = head

    def ready(self, ticket: Ticket) -> bool:
        """Once machines have averaged what comes before it; that is what is read then. Tables are so from here on."""
        if not super().ready(ticket):
            return False
        if self.control.observe(Word.ADOPTED) != self._adopted:
            with self.control.commit_lock:
                self._pin(*self.newest(self.state))
        if self.state.tables and not self.control.row(self.seat.index)[Field.READING]:
            self._pin_tables()
        return True

    def adopt(self, mean: Exchange) -> int:
        """Publish the newest version anew, in another slot, as the mean."""
        version, source = self.newest(self.state)
        target = self._free_slot(source)
        self.state.slots[target].copy_from(self.state.slots[source])
        mean.give(self.state.values(version, target))
        self.control.publish(Word.HEAD, version << _SLOT_BITS | target)
        self._pin(version, target)
        return target

    def close(self) -> None:
        """Nothing is read any more."""
        with self.control.ordering():  # it is said after what was read
            self.control.row(self.seat.index)[Field.READING] = 0

    def read(self, ticket: Ticket) -> nn.Module:
        """The replica on the pinned version.

        Raises:
            ArgumentError: it has tables, and the worker has no ticket, so that nobody keeps them for it.
        """
        row = self.control.row(self.seat.index)
        if self.state.tables and not row[Field.READING]:
            raise ArgumentError(
                f"ticket {ticket.number} is read after it was committed, and no table is kept for it any more; read "
                "it between claim() and commit()"
            )
        return self.replica_at(self._version, row[Field.PIN])

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Make the next version of the newest one, and pin it."""
        gathered = self.prepare(ticket, gradient)
        self.close()  # or two that have read one version would wait for each other
        while not self._make_next(ticket, gradient, gathered):
            self.control.wait_until(self._may_overwrite, self.seat.index)
        return True

    def _may_overwrite(self) -> bool:
        """True where nobody reads a version so old that it needs the log that the next version is to have."""
        if not self.state.tables:
            return True
        first = self.newest(self.state)[0] + 1 - self.state.plan.needs.logs
        with self.control.ordering():
            readings = [self.control.row(worker)[Field.READING] for worker in range(self.control.workers)]
        return all(reading == 0 or reading > first for reading in readings)

    def _make_next(self, ticket: Ticket, gradient: Gradient, gathered: Gathered | None) -> bool:
        """Make the next version, and pin it. False: somebody still reads what it would overwrite."""
        seat, control, update = self.seat, self.control, ticket.update
        with control.commit_lock:
            if not self._may_overwrite():
                return False
            control.row(seat.index)[Field.PHASE] = Phase.WRITING
            version, source = self.newest(self.state)
            if version >= control[Word.TOTAL]:
                seat.leave_out()
                return True
            target = self._free_slot(source)
            self.write_version(update, version, source, target, gathered)
            if gathered is not None:
                self.write_buffers(gradient.version == version, source, target)
            self.state.journal.write(version, update, seat.index, gradient.version, version + 1, gradient.loss)
            self.observe(version + 1, target)
            seat.pause(Hook.PUBLISHING)
            self.publish((version + 1) << _SLOT_BITS | target)
            seat.pause(Hook.PUBLISHED)
            self._pin(version + 1, target)
        return True

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """A ticket is done once a published version came of it."""
        done = state.journal.has(ticket, state.control[Word.HEAD] >> _SLOT_BITS)
        return Settled.DONE if done else Settled.AGAIN

    def newest(self, state: SharedState) -> tuple[int, int]:
        """Version and slot of the head."""
        head = state.control.observe(Word.HEAD)
        return head >> _SLOT_BITS, head & (1 << _SLOT_BITS) - 1

    def _free_slot(self, head: int) -> int:
        control, me = self.control, self.seat.index
        taken = {control.row(worker)[Field.PIN] for worker in range(control.workers) if worker != me}
        return min(set(range(len(self.state.slots))) - taken - {head})
