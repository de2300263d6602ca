"""Tells the callbacks of a run what came of its workers: what they logged, who failed, and checkpoints."""

from __future__ import annotations

from pathlib import Path

from hogwild.run.callback import CallbackList
from hogwild.run.saved.checkpoint import peek
from hogwild.run.saved.directory import CHECKPOINT
from hogwild.run.saved.metrics import logged_row
from hogwild.workers.failures import WorkerHistory


class Follower:
    """Looks now and then, in the parent, and tells what is new since the last look.

    Args:
        callbacks: those of the run.
        history: the supervisor's notes.
        out: directory of the run, if it is saved; a checkpoint that lies there already is not told.
    """

    def __init__(self, callbacks: CallbackList, history: WorkerHistory, out: Path | None) -> None:
        self._callbacks = callbacks
        self._history = history
        self._out = out if callbacks.that_have("on_checkpoint") else None
        self._logged = self._failed = 0
        self._checkpoint = self._signature()

    def look(self) -> None:
        """Tell what is new."""
        logged, failures = self._history.logged[self._logged :], self._history.failures[self._failed :]
        self._logged, self._failed = self._logged + len(logged), self._failed + len(failures)
        if logged:
            self._callbacks.tell("on_log", [logged_row(one) for one in logged])
        for failure in failures:
            self._callbacks.tell("on_failure", failure.as_error())
        signature = self._signature()
        if self._out is not None and signature != self._checkpoint:
            self._checkpoint = signature
            self._callbacks.tell("on_checkpoint", peek(self._out).version, self._out / CHECKPOINT)

    def _signature(self) -> tuple[int, int] | None:
        """What differs between one checkpoint and the next; None where there is none."""
        try:
            found = (self._out / CHECKPOINT).stat() if self._out is not None else None
        except FileNotFoundError:
            found = None
        return (found.st_ino, found.st_mtime_ns) if found is not None else None
