"""Ctrl-C, SIGTERM and SIGHUP while a run is saved, or a process started: what has begun is finished, and the signal is
heard afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Inside, a signal is handled as it was outside until it, or the caller, asks for the rest to be held.

    The first signal that raises holds all that come after it, for the run is saved because of it; where the run goes
    on all the same, `release` lets them be heard again. Held signals are delivered when the block is left, less those
    that an exception is leaving it for anyway. Outside the main thread, which alone hears signals, nothing is done.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int] = {}
        self._held = False
        self._pending: list[int] = []

    def hold(self) -> None:
        """From here on signals wait."""
        self._held = True

    def release(self) -> None:
        """From here on signals are heard again, those that wait first."""
        self._held = False
        pending, self._pending = self._pending, []
        _deliver(pending)

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            self._held = True  # until all handlers are in their places
            try:
                for number in INTERRUPTING:
                    handler = signal.getsignal(number)
                    if handler is not None and handler is not signal.SIG_IGN:
                        self._before[number] = handler
                        signal.signal(number, self._heard)
                _active.append(self)
                self.release()
            except BaseException:
                self._put_back()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = True  # until all handlers are back
        self._put_back()
        ended = isinstance(error, SystemExit)
        interrupted = ended or isinstance(error, KeyboardInterrupt)
        _deliver([n for n in self._pending if not (ended or (interrupted and n == signal.SIGINT))])

    def _put_back(self) -> None:
        """Put back all handlers, even where one that is back is called meanwhile and raises; that of SIGINT last."""
        raised = None
        for number in reversed([*self._before]):
            try:
                if signal.getsignal(number) == self._heard:  # nobody has set another one inside
                    signal.signal(number, self._before[number])
            except BaseException as error:
                raised = error
        if self in _active:
            _active.remove(self)
        if raised is not None:
            raise raised

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending.append(number)
            return
        self._held = True  # before the handler raises, so that no second signal can come in between
        handler = self._before[number]
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._held = False


_active: list[HeldSignals] = []  # those that the main thread is inside, the innermost last


@contextmanager
def holding() -> Iterator[None]:
    """Inside, a signal waits, where there is a `HeldSignals` around that hears it; no handler is touched."""
    around = _active[-1] if _active and threading.current_thread() is threading.main_thread() else None
    if around is None or around._held:
        yield
        return
    around.hold()
    try:
        yield
    finally:
        around.release()


def _deliver(numbers: Sequence[int]) -> None:
    """Raise signals, all of them, whatever their handlers raise."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _deliver(numbers[1:])
