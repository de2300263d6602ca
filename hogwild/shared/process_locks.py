"""The locks that processes share, whatever they hold: on who owns which ticket, on making the next version, on each
shard of it. They lie in the arena, or are bytes of its file where the C library has none that can lie there."""

from __future__ import annotations

from collections.abc import Sequence

from hogwild.shared.arena import Arena, Space
from hogwild.shared.locks import FileLock, Lock
from hogwild.shared.mutex import BYTES, Mutex
from hogwild.shared.tickets import Control

_OTHERS = 2  # beside those of shards: the ticket lock, then the commit lock


class ProcessLocks:
    """The locks of one run, as one process sees them.

    Args:
        arena: that of the run.
        offset: where they lie.
        shards: that have one.
        mutexes: they lie there; else they are bytes of the file. All processes must agree.
    """

    def __init__(self, arena: Arena, offset: int, shards: int, *, mutexes: bool) -> None:
        numbers = range(_OTHERS + shards)
        self._mutexes = [Mutex(arena.bytes(offset + BYTES * n, BYTES)) for n in numbers] if mutexes else []
        files = [] if mutexes else [FileLock(arena.descriptor, n) for n in numbers]
        self.each: Sequence[Lock] = [*self._mutexes, *files]
        self.ticket, self.commit, *self.shards = self.each

    @staticmethod
    def reserve(space: Space, shards: int) -> int:
        """Reserve what they need."""
        return space.reserve(BYTES * (_OTHERS + shards))

    def prepare(self) -> None:
        """Before any other process sees them: nobody holds one."""
        for mutex in self._mutexes:
            mutex.prepare()

    def let_go(self) -> None:
        """Before the memory goes: the calling thread holds none, even one that it was interrupted in taking."""
        for mutex in self._mutexes:
            mutex.release()

    def give(self, control: Control) -> None:
        """Give a control all of them."""
        control.ticket_lock, control.commit_lock, control.shard_locks = self.ticket, self.commit, self.shards
