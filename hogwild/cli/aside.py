"""Standard output for a result alone: what the caller's code prints meanwhile goes to standard error.

command with --json → descriptor 1 is that of standard error → fork server, workers, training → descriptor 1 is its
                                                                 own again → the result
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


class _StandardOutput:
    """Standard output while it is put aside; `give_back` ends that."""

    def __init__(self) -> None:
        self.stream: TextIO = sys.stdout
        self.stream.flush()
        self._descriptor: int | None = os.dup(1)  # which no process that is started inherits
        os.dup2(2, 1)

    def give_back(self) -> None:
        """Let descriptor 1 be what it was."""
        if self._descriptor is not None:
            with suppress(OSError):
                self.stream.flush()  # what was written past `sys.stdout`
            os.dup2(self._descriptor, 1)
            os.close(self._descriptor)
            self._descriptor = None


_aside: list[_StandardOutput] = []  # the innermost last


@contextmanager
def prints_aside() -> Iterator[None]:
    """Inside, what is printed goes to standard error, and so does what worker processes print: they inherit it from
    this program or from a fork server that is started inside. Only `for_the_result` gives standard output itself."""
    kept = _StandardOutput()
    _aside.append(kept)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _aside.remove(kept)
        kept.give_back()


def for_the_result() -> TextIO:
    """Standard output. Where it was put aside, it is so no longer for what writes to descriptor 1 itself."""
    if not _aside:
        return sys.stdout
    _aside[-1].give_back()
    return _aside[-1].stream
