"""Ctrl-C, SIGTERM and SIGHUP while a run is saved, or a process started: what has begun is finished, and the signal is
heard afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
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
        for number in pending:
            signal.raise_signal(number)

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            for number in INTERRUPTING:
                handler = signal.getsignal(number)
                if handler is not None and handler is not signal.SIG_IGN:
                    self._before[number] = handler
                    signal.signal(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._heard:  # nobody has set another one inside
                signal.signal(number, handler)
        ended = isinstance(error, SystemExit)
        interrupted = ended or isinstance(error, KeyboardInterrupt)
        for number in self._pending:
            if not (ended or (interrupted and number == signal.SIGINT)):
                signal.raise_signal(number)

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
