"""Calls of the store of torch.distributed: what it raises is told as a `NodeError`, and the program ends between two.

A thread that comes back from torch once the interpreter has ended is taken apart on its way through C++, and with it
the program: "terminate called without an active exception", exit status 134 (before Python 3.14).
"""

from __future__ import annotations

import atexit
import os
import threading

from torch.distributed import DistError

from hogwild.errors import NodeError, one_line

_PATIENCE = 1.0  # seconds for what is under way when the program ends; a store that is out of reach answers nobody


class _Calls:
    """Those of all threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """There are none, as in a fork."""
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = False

    def begin(self) -> None:
        """Another one is under way; raises a NodeError where the program has ended."""
        with self._changed:
            if self._ended:
                raise NodeError("the program has ended")
            self._under_way += 1

    def end(self) -> None:
        """One is done."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def end_all(self) -> None:
        """Begin no more, and wait for those that are under way."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._under_way, _PATIENCE)


_calls = _Calls()
atexit.register(_calls.end_all)
os.register_at_fork(after_in_child=_calls.forget)


class of_store:  # noqa: N801 - used as a function
    """Inside, the store is called; that it cannot be reached is a `NodeError` that begins with these words, if any."""

    def __init__(self, what: str = "") -> None:
        self._what = what

    def __enter__(self) -> None:
        _calls.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _calls.end()
        if self._what and isinstance(error, DistError):
            raise NodeError(f"{self._what}: {one_line(error)}") from error
