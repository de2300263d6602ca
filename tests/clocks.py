"""A clock that goes on by what is slept, and by nothing else: whoever waits ten minutes by it waits for no time."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """In place of the module `time` where that is only looked at and slept by.

    Args:
        meanwhile: done whenever somebody sleeps.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 1000.0  # seconds
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        """The second that it is."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Go on by so many."""
        self._meanwhile()
        self.now += seconds
