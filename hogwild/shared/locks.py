"""Locks that a dead worker cannot hold.

Threads share a `threading.Lock`: a thread cannot be killed. Processes share a mutex (`hogwild.shared.mutex`), or where
there is none lock a byte of the arena's file with `fcntl.lockf`. The kernel releases either when the holder dies, in
whatever way. A lock on a byte excludes processes only, not threads of one; each worker process locks from one thread.
"""

from __future__ import annotations

import fcntl
from types import TracebackType
from typing import Protocol

_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


class Lock(Protocol):
    """What a `threading.Lock` has of it."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock. False: somebody has it, and the caller does not wait."""
        ...

    def release(self) -> None:
        """Let it go."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class AnnouncedLock:
    """A lock that one worker is seen to wait for: its row says so until it has the lock, and not while it holds it."""

    def __init__(self, lock: Lock, row: memoryview[int], waiting: int, waits: int) -> None:
        self._take, self._leave = lock.acquire, lock.release  # without a call between: it is done for every update
        self._row = row
        self._waiting, self._waits = waiting, waits  # the place of that word in the row, and what it says then
        self._before = 0  # what the row said: it may look, in a wait, at what the lock protects

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; only who waits for it says so."""
        before = self._row[self._waiting]
        if blocking:
            self._row[self._waiting] = self._waits
        if not self._take(blocking):
            return False
        self._before = before
        self._row[self._waiting] = 0
        return True

    def release(self) -> None:
        """Let it go, and go on waiting for what was waited for before."""
        self._leave()
        self._row[self._waiting] = self._before

    def __enter__(self) -> None:
        self._before = self._row[self._waiting]
        self._row[self._waiting] = self._waits
        self._take()
        self._row[self._waiting] = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        self._row[self._waiting] = self._before


class PairedLock:
    """Two locks as one: `inner` excludes the threads of this process from each other, `outer` other processes."""

    def __init__(self, inner: Lock, outer: Lock) -> None:
        self._inner = inner
        self._outer = outer

    def acquire(self, blocking: bool = True) -> bool:
        """Take both. False: somebody has one of them."""
        if not self._inner.acquire(blocking):
            return False
        taken = False
        try:
            taken = self._outer.acquire(blocking)
        finally:
            if not taken:
                self._inner.release()
        return taken

    def release(self) -> None:
        """Let both go."""
        try:
            self._outer.release()
        finally:
            self._inner.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class FileLock:
    """An exclusive lock on byte `number` of an open file, held by the process."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self._number = number

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock. False: another process has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX if blocking else _TRY, 1, self._number)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX leaves open
            return False
        return True

    def release(self) -> None:
        """Let it go."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._number)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
