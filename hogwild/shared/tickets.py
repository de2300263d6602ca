"""Tickets: the right to compute one gradient, dealt to workers one at a time.

Invariants that survive a worker killed between any two lines:
  - a ticket below NEXT is finished, or lies in the reissue list, or is named in the row of a worker (living, or
    dead with its death not yet dealt with), or is another machine's;
  - no ticket has two owners: a row names its ticket before NEXT passes it or the list lets go of it; whoever takes
    the ticket lock from a dead holder first undoes what it had begun; and what a dead worker owned is reissued only
    after the operating system has confirmed the death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from hogwild.errors import ArgumentError
from hogwild.shared.arena import Arena, Space
from hogwild.shared.dealing import Dealing
from hogwild.shared.words import NOBODY, Field, Hook, Phase, Word, Words, nothing_planted


class Ticket(int):
    """The right to compute one gradient. It is its number, and knows what the number stands for; frozen.

    It is true, that of number 0 as well, so `while ticket := worker.claim()` goes on until there is none.

    Attributes:
        update: the update that the gradient becomes part of.
        batch: the batch it is computed on, which also decides what it draws; of several (accumulate) the first.
        share: the part of the update that it is: 1, or under `sync` one in as many as the update has.
    """

    update: int
    batch: int
    share: float

    def __new__(cls, number: int, update: int, batch: int, share: float = 1.0) -> Ticket:
        """A ticket; all four are plain numbers."""
        ticket = int.__new__(cls, number)
        own = ticket.__dict__  # once for every update: twice as fast as `vars(ticket).update(...)`
        own["update"], own["batch"], own["share"] = update, batch, share
        return ticket

    @property
    def number(self) -> int:
        """Its place in the order in which tickets are dealt, from 0."""
        return int(self)

    def __bool__(self) -> bool:
        return True

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of a ticket cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a ticket cannot be removed")

    def __getnewargs__(self) -> tuple[int, int, int, float]:  # type: ignore[override]
        return self.number, self.update, self.batch, self.share

    def __repr__(self) -> str:
        return f"Ticket(number={self.number}, update={self.update}, batch={self.batch}, share={self.share:g})"


class Settled(Enum):
    """What becomes of the ticket of a dead worker."""

    AGAIN = "it is computed again"
    DONE = "it was applied"
    DOUBTED = "it may have been applied in part; nobody computes it again"


ALONE = Dealing()
"""All tickets are this machine's."""
Settle = Callable[[int, Phase], Settled]
"""(number of a ticket, what its owner was doing) → what becomes of it."""


class Control(Words):
    """The counters of one run and its tickets, as one worker, or the parent, sees them.

    Where several machines train together, the tickets of others are passed over, and the row after those of the
    workers is that of the courier, which owns a ticket while it lays a gradient of another machine where it waits.
    """

    is_there: Callable[[int], bool]  # ticket → its gradient waits, or is applied; set by the rule, where machines train

    def __init__(self, arena: Arena, offset: int, workers: int, spares: int, dealing: Dealing = ALONE) -> None:
        couriers = int(dealing.several)
        super().__init__(arena, offset, workers, couriers)
        self.dealing = dealing
        self.numbers = range(dealing.first, dealing.first + workers)  # of its workers, among those of all machines
        self._several = dealing.several  # asked once an update
        self._reissued = arena.words(offset + self.size(workers + couriers), spares)

    @classmethod
    def reserve(cls, space: Space, workers: int, spares: int, dealing: Dealing = ALONE) -> int:
        """Reserve the memory of a control with that many workers and with `spares` places for reissued tickets.

        Reissued tickets are handed out first, and new ones only while there are none. So there are never more of them
        than workers, than tickets that a resumed run left undone, or than tickets of lost machines.
        """
        return space.reserve(cls.size(workers + int(dealing.several)) + 8 * spares)

    def prepare(self, first: int, total: int, again: Sequence[int] = (), per_update: int = 1) -> None:
        """Before any worker starts: tickets `first` to `total` - 1 are to be handed out, and before them `again`;
        `per_update` of them make an update."""
        self[Word.NEXT] = first
        self[Word.HOLDER] = NOBODY
        self[Word.TOTAL] = total
        self[Word.LIVING] = self.dealing.all_living
        self[Word.SENT] = first
        undone = min([first, *again])
        self._prepare_averages(undone // per_update, -(-total // per_update) if undone >= total else None)
        for row in self._rows:
            row[Field.TICKET] = NOBODY
        for i in range(len(self._reissued)):
            self._reissued[i] = again[i] if i < len(again) else NOBODY

    def _prepare_averages(self, first: int, last: int | None) -> None:
        """Note which version was averaged last: the one that update `first` needs, the lowest that is not done. `last`
        is the last version where all updates are done, else None."""
        averages = self.dealing.averages
        adopted = averages.before(first) if averages is not None and last is None else last or 0
        self[Word.ADOPTED] = self[Word.PROPOSED] = adopted
        self[Word.AVERAGED] = NOBODY  # the averager has yet to begin

    def claim(self, worker: int, pause: Callable[[Hook], None] = nothing_planted) -> int | None:
        """A ticket that nobody else has: the lowest reissued one, else the next. None when there are no more.

        Raises:
            ArgumentError: the worker has one, which nobody else would compute then.
        """
        if (left := self._rows[worker][Field.TICKET]) != NOBODY:
            raise ArgumentError(
                f"claim() called before ticket {left} was committed; commit it, or let what was raised end "
                f"work(worker): the worker is replaced, and the ticket computed again"
            )
        with self.ticket_lock:
            self._enter(worker)
            ticket = self._take(worker, pause)
            self._words[Word.HOLDER] = NOBODY
            return ticket

    def _take(self, worker: int, pause: Callable[[Hook], None]) -> int | None:
        where = self._lowest_reissued()
        if where is not None:
            ticket = self._reissued[where]
            self._own(worker, ticket, pause)
            self._reissued[where] = NOBODY
            return ticket
        words = self._words  # once an update: without the calls of `self[...]`
        if self._several and not words[Word.STOP]:
            words[Word.NEXT] = self._next_own(words[Word.NEXT])
        ticket = words[Word.NEXT]
        if words[Word.STOP] or ticket >= words[Word.TOTAL]:
            return None
        self._own(worker, ticket, pause)
        words[Word.NEXT] = ticket + 1
        return ticket

    def _next_own(self, ticket: int) -> int:
        """The first ticket from that one on that this machine is to compute, or the number of all tickets."""
        total, living, dealing = self[Word.TOTAL], self[Word.LIVING], self.dealing
        while ticket < total and (dealing.owner(ticket, living) != dealing.node or self._is_dealt_with(ticket)):
            ticket += 1
        return ticket

    def _is_dealt_with(self, ticket: int) -> bool:
        """True where a worker of this machine owns that ticket, or its gradient is there. The rows are asked first: a
        worker stamps a gradient before its row lets go of the ticket."""
        return any(row[Field.TICKET] == ticket for row in self._rows) or self.is_there(ticket)

    def receive(self, ticket: int) -> bool:
        """Let the courier own a ticket whose gradient came from another machine. False: it is not needed."""
        me = self.workers
        with self.ticket_lock:
            self._enter(me)
            needed = not self._is_dealt_with(ticket)
            if needed:
                self._own(me, ticket, nothing_planted)
                if ticket in self._reissued:
                    self._reissued[list(self._reissued).index(ticket)] = NOBODY
            self[Word.HOLDER] = NOBODY
            return needed

    def adopt(self, ticket: int) -> bool:
        """Let workers of this machine compute a ticket that was passed over because it was another machine's. False:
        that is not needed."""
        with self.ticket_lock:
            self._enter(self.workers)
            passed = ticket < self[Word.NEXT] and ticket not in self._reissued
            needed = passed and not self._is_dealt_with(ticket)
            if needed:
                self._reissue(ticket)
            self[Word.HOLDER] = NOBODY
            return needed

    def _own(self, worker: int, ticket: int, pause: Callable[[Hook], None]) -> None:
        row = self._rows[worker]
        row[Field.PHASE] = Phase.COMPUTING
        row[Field.TICKET] = ticket
        pause(Hook.OWNING)

    def _enter(self, worker: int) -> None:
        """First thing under the ticket lock: name its holder, and undo what a holder that died in it had begun.

        A holder that died may have named a ticket in its row before the counter passed it, or before the reissue list
        let go of it. Another worker will get that ticket, so the row of the dead one must not name it.
        """
        dead = self._words[Word.HOLDER]
        if dead != NOBODY:
            row = self._rows[dead]
            if row[Field.TICKET] >= self[Word.NEXT] or row[Field.TICKET] in self._reissued:
                row[Field.TICKET] = NOBODY
        self._words[Word.HOLDER] = worker

    def finish(self, worker: int) -> None:
        """The worker's ticket is dealt with."""
        row = self._rows[worker]
        row[Field.TICKET] = NOBODY
        row[Field.PHASE] = Phase.IDLE

    def leave(self, worker: int) -> None:
        """The worker claims no more tickets. One that it did not commit is reissued."""
        if self._rows[worker][Field.TICKET] != NOBODY:
            self.hand_back(worker)

    def hand_back(self, worker: int) -> None:
        """The worker gives its ticket up, for anyone to take."""
        with self.ticket_lock:
            self._enter(worker)
            self._reissue(self._rows[worker][Field.TICKET])
            self.finish(worker)
            self[Word.HOLDER] = NOBODY

    def take_again(self, worker: int, ticket: int) -> bool:
        """Let the worker compute that ticket's gradient a second time. False: another one does."""
        with self.ticket_lock:
            if self.computes_again(ticket):
                return False
            self._rows[worker][Field.AGAIN] = ticket + 1
            return True

    def computes_again(self, ticket: int) -> bool:
        """True while somebody computes that ticket's gradient a second time."""
        return any(row[Field.AGAIN] == ticket + 1 for row in self._rows)

    def orphan_before(self, ticket: int) -> bool:
        """True when a ticket below `ticket` waits for somebody to take it."""
        return any(NOBODY < other < ticket for other in self._reissued)

    def all_done_before(self, ticket: int, worker: int) -> bool:
        """True once nobody owns a ticket below that one, and none waits to be taken; `worker` asks."""
        if self[Word.NEXT] < ticket or self._is_held_before(ticket):
            return False
        with self.ticket_lock:  # a look without it may have missed one that changed hands
            self._enter(worker)
            held = self._is_held_before(ticket)
            self[Word.HOLDER] = NOBODY
            return not held

    def _is_held_before(self, ticket: int) -> bool:
        return any(row[Field.TICKET] < ticket for row in self._rows if row[Field.TICKET] != NOBODY) or (
            self.orphan_before(ticket)
        )

    def owner_died(self, worker: int, settle: Settle) -> tuple[int, Settled] | None:
        """Deal with what a worker owned whose death has been confirmed; called by the parent.

        Returns its ticket, or NOBODY, and what `settle(ticket, phase)` said becomes of it. None: somebody has the
        ticket lock, and may hang with it; nothing is dealt with yet.
        """
        row = self._rows[worker]
        if not self.ticket_lock.acquire(blocking=False):
            return None
        try:
            self._enter(worker)
            ticket, phase = row[Field.TICKET], Phase(row[Field.PHASE])
            settled = settle(ticket, phase) if ticket != NOBODY else Settled.DONE
            if settled is Settled.AGAIN:
                self._reissue(ticket)
            self.finish(worker)
            row[Field.AGAIN] = row[Field.PRESENT] = row[Field.READING] = 0
            self[Word.HOLDER] = NOBODY
            return ticket, settled
        finally:
            self.ticket_lock.release()

    def waiting_tickets(self) -> list[int]:
        """Tickets that were handed out and given up, that nobody has taken again, and that are still to be done."""
        return [ticket for ticket in self._reissued if NOBODY < ticket < self[Word.TOTAL]]

    def unfinished(self, settle: Settle, but: int) -> tuple[int, list[int]]:
        """What a run that goes on from here has to compute: (the next ticket, the tickets below it that are not done).

        `but` is the worker that asks, whose own ticket is done, or NOBODY. `settle` decides about those of the others.
        """
        with self.ticket_lock:
            self._enter(but)
            again = [t for worker, t, phase in self.owned() if worker != but and settle(t, phase) is Settled.AGAIN]
            self[Word.HOLDER] = NOBODY
            return self[Word.NEXT], sorted({*again, *(ticket for ticket in self._reissued if ticket != NOBODY)})

    def owned(self) -> list[tuple[int, int, Phase]]:
        """(worker, ticket, phase) for each ticket that a row names."""
        found = [(worker, row[Field.TICKET], Phase(row[Field.PHASE])) for worker, row in enumerate(self._rows)]
        return [one for one in found if one[1] != NOBODY]

    def _lowest_reissued(self) -> int | None:
        tickets = self._reissued.tolist()
        held = [ticket for ticket in tickets if ticket != NOBODY]
        return tickets.index(min(held)) if held else None

    def _reissue(self, ticket: int) -> None:
        if ticket not in self._reissued:
            self._reissued[list(self._reissued).index(NOBODY)] = ticket
            self.alarms.rouse()
