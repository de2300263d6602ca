"""A bell between the processes of a run: rung by many, heard by one, and by nobody twice for one ring."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

from hogwild.errors import ArgumentError

_HEARD, _RUNG = range(2)  # the ends of the pipe
_ROOM = 4096  # bytes that are taken at once: so many rings are heard as one


class Bell:
    """A pipe. It may be pickled while a process is being started, where it is the same bell.

    Raises:
        ArgumentError: the program has no file descriptor left.
    """

    _descriptors: tuple[int, ...] = ()

    def __init__(self) -> None:
        try:
            self._descriptors = os.pipe()
        except OSError as error:
            raise ArgumentError(f"no pipe can be had between the processes of a run: {error.strerror}") from error
        os.set_blocking(self._descriptors[_RUNG], False)

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptors": [reduction.DupFd(descriptor) for descriptor in self._descriptors]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._descriptors = tuple(one.detach() for one in state["descriptors"])

    def ring(self) -> None:
        """Ring it; that never waits, and it rings for who listens later, too."""
        with suppress(BlockingIOError):  # it is full of rings that nobody has heard yet
            os.write(self._descriptors[_RUNG], b"\0")

    def wait(self) -> None:
        """Wait until it rings, or has been rung since the last time."""
        os.read(self._descriptors[_HEARD], _ROOM)

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
