"""The interpreter's lock (GIL): is there one, and how long does a thread wait for it while another one computes?"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hogwild.config import AUTO

T = TypeVar("T")
_EVERY = 1e-3  # seconds between two looks


def has_gil() -> bool:
    """True where one thread at a time runs Python."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def likely_kind(kind: str) -> str:
    """The kind of worker that a setting names; where it leaves that open, the one that is chosen most often."""
    if kind != AUTO:
        return kind
    return "processes" if has_gil() and may_start_processes() else "threads"


def may_start_processes() -> bool:
    """False in a daemonic process, as the workers of a run or of a pool are."""
    return not multiprocessing.current_process().daemon


@dataclass(frozen=True)
class Measured:
    """What a piece of work took: `seconds` of processor time in the thread that did it, and the share of its time for
    which another thread, that wanted the interpreter once a millisecond, `waited` for it."""

    seconds: float
    waited: float


class _Bystander:
    """A thread that wants the interpreter once a millisecond. Its own numbers are read once it has ended."""

    def __init__(self) -> None:
        self._leave = False
        self._late = 0.0
        self._thread = threading.Thread(target=self._look, name="hogwild-bystander", daemon=True)
        self._began = time.perf_counter()
        self._thread.start()

    def _look(self) -> None:
        while not self._leave:
            before = time.perf_counter()
            time.sleep(_EVERY)
            self._late += time.perf_counter() - before - _EVERY

    def left(self) -> float:
        """End it; returns the share of the time since it began for which it waited."""
        self._leave = True
        self._thread.join()
        return self._late / (time.perf_counter() - self._began)


def measured(work: Callable[[], T]) -> tuple[T, Measured]:
    """Do some work once, in this thread, and measure it. A busy machine makes the waited share larger or smaller."""
    bystander = _Bystander()
    try:
        began = time.thread_time()
        result = work()
        seconds = time.thread_time() - began
    finally:
        waited = bystander.left()
    return result, Measured(seconds, waited)
