"""Locks that a dead worker cannot hold.

Threads share a `threading.Lock`: a thread cannot be killed. Processes lock a byte of the arena's file with
`fcntl.lockf`, which the kernel releases when the holder dies, however it dies. Such a lock excludes processes
only, not threads of one process; each worker process locks from one thread.
"""

from __future__ import annotations

import fcntl
from types import TracebackType


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
