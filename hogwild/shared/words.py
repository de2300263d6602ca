"""The words that workers steer by: counters of the run, and a row for each worker.

Every word has one writer at a time, or is written under the ticket lock, and is 8 bytes at an 8-byte address:
a reader sees the old value or the new one, never half of each. The GIL protects nothing here: each worker has a
`Words`, and so memoryviews, of its own, and no Python object of one is touched by another, but for the two locks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum, StrEnum

from hogwild.shared.alarms import PLACES, Alarms
from hogwild.shared.arena import ALIGNMENT, Arena
from hogwild.shared.limits import usable_cores
from hogwild.shared.locks import AnnouncedLock, Lock
from hogwild.shared.mutex import ORDERED_STORES

NOBODY = -1  # no ticket, no worker
_LINE = ALIGNMENT // 8  # words in a cache line: words that different workers write do not share one


class Word:
    """The words of a run: their places, each in a cache line of its own.

    Plain integers, for every update looks up dozens of them, and a member of an enum takes four times as long.
    """

    NEXT = 0 * _LINE  # the next ticket to hand out; written under the ticket lock
    TOTAL = 1 * _LINE  # tickets there are; written by the parent, or by the worker that stops the run
    HEAD = 2 * _LINE  # the newest version that is complete; written by the one worker at a time that completes one
    STOP = 3 * _LINE  # 1: finish what is claimed and claim no more
    ABORT = 4 * _LINE  # 1: stop waiting at once, the run has failed
    OBSERVED = 5 * _LINE  # the last version copied out for evaluation; written by the worker that copied it
    EVALUATED = 6 * _LINE  # the last version evaluated; written by the parent, or by a worker that shows one anew
    HOLDER = 7 * _LINE  # the worker that holds the ticket lock, or NOBODY; written under the lock
    BASE = 8 * _LINE  # updates applied before this run, for rules that count commits; written by the parent
    LIVING = 9 * _LINE  # the machines that live, as bits; written by the courier
    SENT = 10 * _LINE  # tickets below it that were computed here have left their slots; written by the courier
    PROPOSED = 11 * _LINE  # the version whose values lie where machines average them; written under the commit lock
    AVERAGED = 12 * _LINE  # the version whose mean lies there; written by the averager
    ADOPTED = 13 * _LINE  # the version that is the mean, and that updates may begin after; written under that lock
    THAWED = 14 * _LINE  # 1: no more is to be told of what the loss freezes; written under the ticket lock
    WRITTEN = 15 * _LINE  # 1: it has been told that a loop writes to the model; written under the ticket lock
    SHARED = 16 * _LINE  # the newest version that was ever to be made in shards; written under the commit lock
    MADE = 17 * _LINE  # 1: it has been told that a forward pass makes a buffer late; written under the ticket lock


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
    WAITING = 8  # 0: it works; else it waits for other workers: for a lock, or looking at times for something else
    PIN = 9  # the slot it reads, where a rule lets workers pin one
    AGAIN = 10  # the ticket whose gradient it computes a second time, plus one; 0: none
    PRESENT = 11  # 1 while it may still compute one; set by the parent that starts it, and cleared where it died
    RECHECKED = 12  # gradients that it has computed a second time, and found equal
    READING = 13  # the version that it reads, plus one, where a rule keeps no version longer than it is read; 0: none
    LOOKS = 14  # how often it has looked for what it waits for


_ALARMS = Word.MADE + _LINE
_WORDS = _ALARMS + PLACES
_ROW = 2 * _LINE  # words of a row


FOR_A_LOCK, LOOKING = 1, 2
"""What a worker's row says under `WAITING`."""


class Phase(IntEnum):
    """What a worker is doing with its ticket."""

    IDLE = 0
    COMPUTING = 1  # the shared model is untouched by this ticket
    WRITING = 2  # the shared model may hold part of it
    APPLIED = 3  # the shared model holds all of it


class Aborted(Exception):  # noqa: N818 - leaves a wait, and never reaches a caller
    """The run has failed elsewhere; whoever waits leaves."""


class Hook(StrEnum):
    """The moments of the protocol at which tests plant delays, kills and other faults."""

    CLAIMING = "claiming"  # before a ticket is asked for
    OWNING = "owning"  # holding the ticket lock: the ticket has an owner, the counter has not moved
    CLAIMED = "claimed"
    COMPUTING = "computing"  # the batch is there, the gradient is not
    COMPARING = "comparing"  # a gradient has been computed a second time, and is not compared yet
    COMMITTING = "committing"  # the gradient is there
    WRITING = "writing"  # while the shared model, or the next version, is written; in a lock where there is one
    LOGGED = "logged"  # what rows of tables held is logged; of a kernel half of the rows are written, else none yet
    STEPPING = "stepping"  # a shard of the next version is stepped, in its lock, and does not count yet
    PUBLISHING = "publishing"  # the next version is complete, and not yet the head
    PUBLISHED = "published"  # it is the head, and the ticket still has its owner


def nothing_planted(hook: Hook) -> None:
    """Nothing is planted."""


# Where stores are ordered, what was written before a word is seen by whoever sees the word. Elsewhere a lock's own
# barriers order both sides.
_ORDERED_STORES = ORDERED_STORES
_NOTHING: AbstractContextManager[object] = nullcontext()
_YIELDS = 100  # yields, of about a microsecond, before a sleep, of which the shortest takes about 80
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 500e-6  # where it is not known how long a wait will be
_LONGEST_FORESEEN = 20e-3  # where it is, or where who ends it wakes who waits
_SOON = 200e-6  # a shorter wait is not slept through in one go


class Words:
    """The counters of one run, and a row of words for each worker, as one worker, or the parent, sees them.

    After the rows of the workers there may be some of `others`, who own tickets too, and compute none.
    """

    commit_lock: Lock
    shard_locks: Sequence[Lock] = ()

    def __init__(self, arena: Arena, offset: int, workers: int, others: int = 0) -> None:
        self.workers = workers
        self.ticket_lock: Lock = threading.Lock()  # its own, as long as nobody else is there
        self.alarms = Alarms(arena.words(offset + 8 * _ALARMS, PLACES))
        self.bell = arena.bell  # where several machines train together: heard by the courier
        self._words = arena.words(offset, _WORDS)
        rows = offset + 8 * _WORDS
        self._rows = [arena.words(rows + 8 * _ROW * i, _ROW) for i in range(workers + others)]
        self._spins = workers <= usable_cores()  # else a yield takes a core from somebody who computes
        self._impatient = 0  # the thread that is inside `without_waiting`, or 0
        self._observed: dict[int, int] = {}  # word → its value when it was last read under the lock
        self._seen = 0, 0  # the head when this worker last began to wait, and the time then

    @staticmethod
    def size(workers: int) -> int:
        """Bytes of the words of so many workers."""
        return 8 * (_WORDS + _ROW * workers)

    def announce_waits(self, worker: int) -> None:
        """From here on that worker's row says when it waits for one of these locks."""
        row = self._rows[worker]
        self.ticket_lock = AnnouncedLock(self.ticket_lock, row, Field.WAITING, FOR_A_LOCK)
        self.commit_lock = AnnouncedLock(self.commit_lock, row, Field.WAITING, FOR_A_LOCK)
        self.shard_locks = [AnnouncedLock(lock, row, Field.WAITING, FOR_A_LOCK) for lock in self.shard_locks]

    def __getitem__(self, word: int) -> int:
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def row(self, worker: int) -> memoryview[int]:
        """The row of that worker; index it with `Field`."""
        return self._rows[worker]

    def ring(self) -> None:
        """Let the courier look, where there is one."""
        if self.bell is not None:
            self.bell.ring()

    def commits(self) -> int:
        """Updates applied in place so far, those before a resume included; rules that make versions count none here.

        Not a snapshot: commits made while the rows are read may or may not count.
        """
        return self[Word.BASE] + sum([row[Field.COMMITS] for row in self._rows])

    def publish(self, word: int, value: int) -> None:
        """Set a word so that whoever observes it also sees all that was written before."""
        if _ORDERED_STORES:
            self._words[word] = value
        else:
            with self.ticket_lock:
                self[word] = value

    def tries_to_publish(self, word: int, value: int) -> bool:
        """`publish` without waiting for a lock. False: not published, because a worker holds the lock."""
        if not _ORDERED_STORES and not self.ticket_lock.acquire(blocking=False):
            return False
        self._words[word] = value
        if not _ORDERED_STORES:
            self.ticket_lock.release()
        return True

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Inside, `observe` does not wait for the lock in this thread. Where a worker holds it, and may hang with it,
        the value that was seen last is returned."""
        self._impatient = threading.get_ident()
        try:
            yield
        finally:
            self._impatient = 0

    def first_to_set(self, word: int) -> bool:
        """Set a word to 1; True for the one who is the first to."""
        with self.ticket_lock:
            first, self[word] = not self[word], 1
        return first

    def observe(self, word: int) -> int:
        """Read a word that was published. The caller then sees all that was written before it was published."""
        if _ORDERED_STORES:
            return self._words[word]  # several times an update: without a call between
        if self.ticket_lock.acquire(self._impatient != threading.get_ident()):
            try:
                self._observed[word] = self._words[word]
            finally:
                self.ticket_lock.release()
        return self._observed.get(word, 0)

    def ordering(self) -> AbstractContextManager[object] | Lock:
        """A context for stores and loads of a word outside of this class that announces other memory, such as the stamp
        of a gradient. Whoever loads the new value in it also sees that memory as it was before the store."""
        return _NOTHING if _ORDERED_STORES else self.ticket_lock

    def says(self, words: memoryview[int], place: int, value: int) -> bool:
        """Whether such a word, as `ordering` is about, has this value."""
        if _ORDERED_STORES:
            return words[place] == value
        with self.ticket_lock:
            return words[place] == value

    def wait_until(self, condition: Callable[[], bool], worker: int, version: int = NOBODY) -> None:
        """Wait until the condition holds.

        Where each worker has a core, a wait that may be short begins with yields. In a wait for a `version` this worker
        sleeps until the maker of that version wakes it, where there are alarms. Where there are none, it sleeps until
        about one version before it, judged by the pace at which versions were made since it waited last. What remains,
        and any other wait, consists of sleeps of 20 µs to half a millisecond.

        Raises:
            Aborted: the run has failed.
        """
        if condition():
            return
        row = self._rows[worker]
        row[Field.WAITING] = LOOKING
        began, waited = time.monotonic_ns(), row[Field.WAITED]
        pace = self._pace(began)
        yields = _YIELDS if self._spins else 0
        pause = _SHORTEST_SLEEP if self._spins else max(_SHORTEST_SLEEP, pace / 4)
        while not condition():
            if self[Word.ABORT]:
                raise Aborted
            row[Field.LOOKS] += 1
            left = version - self[Word.HEAD]
            foreseen = (left - 1) * pace  # the next version may come at any moment
            if yields and foreseen <= _SOON:
                yields -= 1
                os.sched_yield()
            elif left > 0 and self.alarms.works:
                self.alarms.sleep(version, condition, _LONGEST_FORESEEN)
            elif foreseen > _SOON:
                time.sleep(min(foreseen, _LONGEST_FORESEEN))
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_SLEEP)
        row[Field.WAITED] = waited + time.monotonic_ns() - began  # a wait in a condition is a part of this one
        row[Field.WAITING] = 0

    def _pace(self, now: int) -> float:
        """Seconds that a version took since this was asked before; 0 where none was made."""
        head, (before, then) = self[Word.HEAD], self._seen
        self._seen = head, now
        return (now - then) / (head - before) * 1e-9 if head > before and then else 0.0
