"""Locks that a dead worker cannot hold.

Threads share a `threading.Lock`: a thread cannot be killed. Processes lock a byte of the arena's file with
`fcntl.lockf`, which the kernel releases when the holder dies, however it dies. Such a lock excludes processes
only, not threads of one process; each worker process locks from one thread.
"""

from __future__ import annotations

import fcntl
from contextlib import AbstractContextManager
from types import TracebackType

Lock = AbstractContextManager[object]


class AnnouncedLock:
    """A lock that one worker is seen to wait for: its row says so until it has the lock, and not while it holds it."""

    def __init__(self, lock: Lock, row: memoryview[int], waiting: int) -> None:
        self._lock = lock
        self._row = row
        self._waiting = waiting  # the place of that word in the row
        self._before = 0  # what the row said: it may look, in a wait, at what the lock protects

    def __enter__(self) -> None:
        self._before = self._row[self._waiting]
        self._row[self._waiting] = 1
        self._lock.__enter__()
        self._row[self._waiting] = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, traceback)
        self._row[self._waiting] = self._before


class FileLock:
    """An exclusive lock on byte `number` of an open file, held by the process."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self._number = number

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._number)
