"""The words that workers steer by: counters, tickets and who owns them.

Every word has one writer at a time, or is written under the ticket lock, and is 8 bytes at an 8-byte address:
a reader sees the old value or the new one, never half of each. The GIL protects nothing here: each worker has a
`Control`, and so memoryviews, of its own, and no Python object of one is touched by another, but for the two locks.

Invariants that survive a worker killed between any two lines:
  - a ticket below NEXT is finished, or lies in the reissue list, or is named in the row of a worker (living, or
    dead and not yet buried);
  - no ticket has two owners: a row names its ticket before NEXT passes it or the list lets go of it; whoever takes
    the ticket lock from a dead holder first undoes what it had begun; and what a dead worker owned is reissued only
    after the operating system has confirmed the death.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, IntEnum, StrEnum
from types import TracebackType

from hogwild.memory import ALIGNMENT, Arena, Space

NOBODY = -1  # no ticket, no worker
_LINE = ALIGNMENT // 8  # words in a cache line: words that different workers write do not share one


class Word:
    """The words of a run: their places, each in a cache line of its own.

    Plain integers, for every update looks up dozens of them, and a member of an enum takes four times as long.
    """

    NEXT = 0 * _LINE  # the next ticket to hand out; written under the ticket lock
    TOTAL = 1 * _LINE  # tickets there are; written by the parent, or by the worker that stops the run
    HEAD = 2 * _LINE  # the newest version that is complete; written by the one committer there is at a time
    STOP = 3 * _LINE  # 1: finish what is claimed and claim no more
    ABORT = 4 * _LINE  # 1: stop waiting at once, the run has failed
    OBSERVED = 5 * _LINE  # the last version copied out for evaluation; written by the worker that copied it
    EVALUATED = 6 * _LINE  # the last version evaluated; written by the parent, or by a worker that shows one anew
    HOLDER = 7 * _LINE  # the worker that holds the ticket lock, or NOBODY; written under the lock
    BASE = 8 * _LINE  # updates applied before this run, for rules that count commits; written by the parent


class Field:
    """The places of the words of one worker's row, written by that worker alone."""

    TICKET = 0  # the ticket it owns, or NOBODY
    PHASE = 1
    COMMITS = 2  # updates it has applied
    COMPUTED = 3  # gradients it has computed
    SKIPPED = 4  # updates it left out because their gradient was not finite
    STARTED = 5  # CLOCK_MONOTONIC at its first claim, nanoseconds
    ENDED = 6  # the same after its last commit
    WAITED = 7  # nanoseconds spent waiting for other workers
    WAITING = 8  # 1 while it waits for other workers, be it for a version or for a lock
    PIN = 9  # the slot it reads, where a rule lets workers pin one


_WORDS = Word.BASE + _LINE
_ROW = 2 * _LINE  # words of a row


class Phase(IntEnum):
    """What a worker is doing with its ticket."""

    IDLE = 0
    COMPUTING = 1  # the shared model is untouched by this ticket
    WRITING = 2  # the shared model may hold part of it
    APPLIED = 3  # the shared model holds all of it


class Settled(Enum):
    """What becomes of the ticket of a dead worker."""

    AGAIN = "it is computed again"
    DONE = "it was applied"
    DOUBTED = "it may have been applied in part; nobody computes it again"


class Aborted(Exception):  # noqa: N818 - leaves a wait, and never reaches a caller
    """The run has failed elsewhere; whoever waits leaves."""


class Seam(StrEnum):
    """The moments of the protocol at which tests plant delays, kills and other faults."""

    CLAIMING = "claiming"  # before a ticket is asked for
    OWNING = "owning"  # holding the ticket lock: the ticket has an owner, the counter has not moved
    CLAIMED = "claimed"
    COMPUTING = "computing"  # the batch is there, the gradient is not
    COMMITTING = "committing"  # the gradient is there
    WRITING = "writing"  # while the shared model, or the next version, is written; in a lock where there is one
    PUBLISHING = "publishing"  # the next version is complete, and not yet the head
    PUBLISHED = "published"  # it is the head, and the ticket still has its owner


def nothing_planted(seam: Seam) -> None:
    """Nothing is planted."""


Lock = AbstractContextManager[object]


class AnnouncedLock:
    """A lock that one worker is seen to wait for: its row says so until it has the lock, and not while it holds it."""

    def __init__(self, lock: Lock, row: memoryview[int]) -> None:
        self._lock = lock
        self._row = row
        self._before = 0  # what the row said: it may look, in a wait, at what the lock protects

    def __enter__(self) -> None:
        self._before = self._row[Field.WAITING]
        self._row[Field.WAITING] = 1
        self._lock.__enter__()
        self._row[Field.WAITING] = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, traceback)
        self._row[Field.WAITING] = self._before


# On x86-64 stores become visible in the order in which they were made, so what was written before a word is seen
# by whoever sees the word. Other processors may reorder; there a lock's own barriers order both sides.
_ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64")
_NOTHING = nullcontext()

_SPINS = 20
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 500e-6  # a waiting worker looks at least every millisecond, timer slack included


class Control:
    """The counters of one run, as one worker, or the parent, sees them."""

    def __init__(self, arena: Arena, offset: int, workers: int, spares: int) -> None:
        self.workers = workers
        self._words = arena.words(offset, _WORDS)
        rows = offset + 8 * _WORDS
        self._rows = [arena.words(rows + 8 * _ROW * i, _ROW) for i in range(workers)]
        self._reissued = arena.words(rows + 8 * _ROW * workers, spares)
        self.pause: Callable[[Seam], None] = nothing_planted
        self.ticket_lock: Lock
        self.commit_lock: Lock

    @staticmethod
    def reserve(space: Space, workers: int, spares: int) -> int:
        """Reserve what a control of that many workers and reissued tickets needs.

        No more tickets than there are workers wait to be taken again, or than the run left undone that is resumed: the
        counter moves only while none does.
        """
        return space.reserve(8 * (_WORDS + _ROW * workers + spares))

    def prepare(self, first: int, total: int, again: Sequence[int] = ()) -> None:
        """Before any worker starts: tickets `first` to `total` - 1 are to be handed out, and before them `again`."""
        self[Word.NEXT] = first
        self[Word.HOLDER] = NOBODY
        self[Word.TOTAL] = total
        for row in self._rows:
            row[Field.TICKET] = NOBODY
        for i in range(len(self._reissued)):
            self._reissued[i] = again[i] if i < len(again) else NOBODY

    def announce_waits(self, worker: int) -> None:
        """From here on that worker's row says when it waits for one of these locks."""
        row = self._rows[worker]
        self.ticket_lock = AnnouncedLock(self.ticket_lock, row)
        self.commit_lock = AnnouncedLock(self.commit_lock, row)

    def __getitem__(self, word: int) -> int:
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def row(self, worker: int) -> memoryview[int]:
        """The row of that worker; index it with `Field`."""
        return self._rows[worker]

    def commits(self) -> int:
        """Updates applied so far, those before a resume included.

        Not a snapshot: commits made while the rows are read may or may not count.
        """
        return self[Word.BASE] + sum([row[Field.COMMITS] for row in self._rows])

    # --- publishing

    def publish(self, word: int, value: int) -> None:
        """Set a word so that whoever observes it also sees all that was written before."""
        if _ORDERED_STORES:
            self[word] = value
        else:
            with self.ticket_lock:
                self[word] = value

    def observe(self, word: int) -> int:
        """Read a word that was published."""
        if _ORDERED_STORES:
            return self[word]
        with self.ticket_lock:
            return self[word]

    def ordering(self) -> AbstractContextManager[object]:
        """Around a store that says that other memory is written, and around its loads, where it is no `Word`."""
        return _NOTHING if _ORDERED_STORES else self.ticket_lock

    def wait_until(self, condition: Callable[[], bool], worker: int) -> None:
        """Wait by yielding, then by sleeps of 20 µs to half a millisecond.

        Raises:
            Aborted: the run has failed.
        """
        if condition():
            return
        row = self._rows[worker]
        row[Field.WAITING] = 1
        began = time.monotonic_ns()
        pause = 0.0
        while not condition():
            if self[Word.ABORT]:
                raise Aborted
            pause = self._rest(pause)
        row[Field.WAITED] += time.monotonic_ns() - began
        row[Field.WAITING] = 0

    @staticmethod
    def _rest(pause: float) -> float:
        """Rest once; returns what to give the next time. Negative pauses count yields."""
        if pause > -_SPINS and pause <= 0:
            os.sched_yield()
            return pause - 1
        pause = max(pause, _SHORTEST_SLEEP)
        time.sleep(pause)
        return min(2 * pause, _LONGEST_SLEEP)

    # --- tickets

    def claim(self, worker: int) -> int | None:
        """A ticket that nobody else has: the lowest reissued one, else the next. None when there are no more."""
        with self.ticket_lock:
            self._enter(worker)
            ticket = self._take(worker)
            self[Word.HOLDER] = NOBODY
            return ticket

    def _take(self, worker: int) -> int | None:
        where = self._lowest_reissued()
        if where is not None:
            ticket = self._reissued[where]
            self._own(worker, ticket)
            self._reissued[where] = NOBODY
            return ticket
        ticket = self[Word.NEXT]
        if self[Word.STOP] or ticket >= self[Word.TOTAL]:
            return None
        self._own(worker, ticket)
        self[Word.NEXT] = ticket + 1
        return ticket

    def _own(self, worker: int, ticket: int) -> None:
        row = self._rows[worker]
        row[Field.PHASE] = Phase.COMPUTING
        row[Field.TICKET] = ticket
        self.pause(Seam.OWNING)

    def _enter(self, worker: int) -> None:
        """First thing under the ticket lock: name its holder, and undo what a holder that died in it had begun.

        It may have named a ticket in its row that the counter had not passed, or that the reissue list still held;
        somebody else will get that ticket, so the dead worker must not seem to own it.
        """
        dead = self[Word.HOLDER]
        if dead != NOBODY:
            row = self._rows[dead]
            if row[Field.TICKET] >= self[Word.NEXT] or row[Field.TICKET] in self._reissued:
                row[Field.TICKET] = NOBODY
        self[Word.HOLDER] = worker

    def finish(self, worker: int) -> None:
        """The worker's ticket is dealt with."""
        row = self._rows[worker]
        row[Field.TICKET] = NOBODY
        row[Field.PHASE] = Phase.IDLE

    def hand_back(self, worker: int) -> None:
        """The worker gives its ticket up, for anyone to take."""
        with self.ticket_lock:
            self._enter(worker)
            self._reissue(self._rows[worker][Field.TICKET])
            self.finish(worker)
            self[Word.HOLDER] = NOBODY

    def orphan_before(self, ticket: int) -> bool:
        """True when a ticket below `ticket` waits for somebody to take it."""
        return any(NOBODY < other < ticket for other in self._reissued)

    def bury(self, worker: int, settle: Callable[[int, Phase], Settled]) -> int | None:
        """Deal with what a worker owned whose death has been confirmed; called by the parent.

        `settle(ticket, phase)` says what becomes of the ticket. Returns the ticket where it is in doubt.
        """
        row = self._rows[worker]
        with self.ticket_lock:
            self._enter(worker)
            ticket, phase = row[Field.TICKET], Phase(row[Field.PHASE])
            settled = settle(ticket, phase) if ticket != NOBODY else Settled.DONE
            if settled is Settled.AGAIN:
                self._reissue(ticket)
            self.finish(worker)
            self[Word.HOLDER] = NOBODY
            return ticket if settled is Settled.DOUBTED else None

    def waiting_tickets(self) -> list[int]:
        """Tickets that were handed out and given up, that nobody has taken again, and that are still to be done."""
        return [ticket for ticket in self._reissued if NOBODY < ticket < self[Word.TOTAL]]

    def unfinished(self, settle: Callable[[int, Phase], Settled], but: int) -> tuple[int, list[int]]:
        """(the next ticket to hand out, the tickets below it that are to be computed again by who goes on from here).

        `but` is the worker that asks, whose own ticket is done, or NOBODY; `settle` decides over those of the others.
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
