"""Looks, wherever a worker writes, whether it holds the lock that lets one commit at a time."""

from __future__ import annotations

from typing import Any

from side_by_side import at_once

from hogwild.shared.locks import FileLock
from hogwild.testing import Hook


def alone(hook: Hook, seat: Any) -> None:
    """To be planted: a worker that writes raises, and so is told of as a failure, where another one could write too."""
    lock = seat.control.commit_lock
    if hook is Hook.WRITING and not isinstance(lock, FileLock):  # which keeps no two threads of one process apart

        def could_write() -> bool:
            taken = bool(lock.acquire(blocking=False))
            if taken:
                lock.release()
            return taken

        assert at_once(could_write) == [False], "another worker could write meanwhile"
