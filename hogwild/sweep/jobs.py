"""The runs of a sweep, so many at once, each in a process of its own, until all have ended or somebody stops them.

A sweep that is killed leaves nothing to tidy up: its runs end by themselves (`hogwild.sweep.child`), and hold the lock
of the sweep's folder until they have, so that whoever goes on with it does not meet them.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirectoryError
from hogwild.run.saved.directory import occupied
from hogwild.shared.limits import refuse_jobs, usable_cores
from hogwild.sweep.child import run_child
from hogwild.sweep.plan import LOGS, PlannedRun, SweepPlan, said
from hogwild.sweep.rows import DONE, RUNNING, SweepRow, failed_row, row_of, rows_of
from hogwild.workers.process.spawn import SERVER_LOST, comes_to_its_end, make_process, start_context, start_process

_LOCK = ".hogwild-lock-jobs"
_LOOK_EVERY = 0.1  # seconds
_PATIENCE = 120.0  # seconds for runs to be saved
_LAST_WORDS = 300  # bytes of a log, at most

Show = Callable[[Sequence[SweepRow]], None]


def jobs_for(workers: int) -> int:
    """How many runs of so many workers each fit on this machine's cores at once; one at least."""
    return max(1, int(usable_cores()) // workers)


def run_sweep(folder: Path, plan: SweepPlan, jobs: int, show: Show, tell: Callable[[str], None]) -> list[SweepRow]:
    """Make all runs of a sweep that have not ended yet, and go on with those that were begun.

    Args:
        folder: the sweep's, with its plan.
        plan: the same.
        jobs: how many at once.
        show: called with the rows whenever one has changed, and several times a second.
        tell: called with what is waited for, in words.

    Raises:
        ArgumentError: so many at once would need more open files than this process may have.
        RunDirectoryError: another sweep is at work in the folder.
        KeyboardInterrupt, SystemExit: it was stopped; all its runs are saved, and none is left.
    """
    with occupied(folder), _alone(folder, tell) as lock:
        sweep = _Sweep(folder, plan, lock, rows_of(folder, plan))
        if sweep.waiting:
            refuse_jobs(min(jobs, len(sweep.waiting)))
        try:
            sweep.work(jobs, show)
        except BaseException:
            tell(f"stopping; {len(sweep.running)} under way will be saved")
            sweep.stop()
            raise
        return sweep.rows


@contextmanager
def _alone(folder: Path, tell: Callable[[str], None]) -> Iterator[int]:
    """Inside, no run of a sweep that was killed is still being saved; gives the lock that runs are to hold."""
    (folder / LOGS).mkdir(exist_ok=True)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    deadline, told = time.monotonic() + _PATIENCE, False
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise RunDirectoryError(
                        f"runs of the sweep in {folder} that was killed have not ended in {_PATIENCE:g} seconds; end "
                        f"them, or name another folder"
                    ) from error
                if not told:
                    tell("waiting for the runs of the sweep that was killed to be saved")
                    told = True
                time.sleep(_LOOK_EVERY)
        yield lock
    finally:
        with suppress(OSError):
            (folder / _LOCK).unlink()
        os.close(lock)


class _Sweep:
    def __init__(self, folder: Path, plan: SweepPlan, lock: int, rows: list[SweepRow]) -> None:
        self.folder, self.plan, self.lock, self.rows = folder, plan, lock, rows
        self.running: dict[int, _Job] = {}  # by the number of the row
        self.waiting = [number for number, row in enumerate(rows) if row.status != DONE]

    def work(self, jobs: int, show: Show) -> None:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < jobs:
                number = self.waiting.pop(0)
                self.rows[number] = replace(self.rows[number], status=RUNNING)
                self.running[number] = _Job(self.folder, self.plan.runs[number], self.lock)
            show(self.rows)
            connection.wait([job.end for job in self.running.values()], _LOOK_EVERY)
            for number in list(self.running):
                self._look(number)
        show(self.rows)

    def _look(self, number: int) -> None:
        job, row = self.running[number], self.rows[number]
        status = job.status()
        told = job.told()
        if status is None:
            if told:
                self.rows[number] = replace(row, **{key: told[key] for key in ("updates", "total", "metrics")})
            return
        del self.running[number]
        job.close()
        made = row_of(self.folder, job.run)
        if status == 0 and made.status == DONE:
            self.rows[number] = made
        else:
            self.rows[number] = failed_row(row, job.error or _ended(status, job.last_words()))

    def stop(self) -> None:
        """End all runs, saved; who does not end in time, or is asked to once more, is killed."""
        for job in self.running.values():
            job.ask_to_end()
        try:
            deadline = time.monotonic() + _PATIENCE
            for job in self.running.values():
                job.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for job in self.running.values():
                job.close()


def _ended(status: int, words: str) -> str:
    """In words, how a process has ended that did not tell by what, and what it had said."""
    if status == SERVER_LOST:
        return "the fork server of the sweep was killed"
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    with suppress(ValueError):
        how = f"was killed by {signal.Signals(-status).name}"
    return f"it {how}; the last that it printed: {words}" if words else f"it {how}"


class _Job:
    """The process of one run.

    Attributes:
        run: which it is.
        error: what it failed by, where it has told it.
    """

    def __init__(self, folder: Path, run: PlannedRun, lock: int) -> None:
        self.run, self.error = run, ""
        self._log = log = folder / LOGS / f"{run.folder}.log"
        with log.open("a", encoding="utf-8") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {run.config.name} {_settings(run)}\n")
            self._log_begins = file.tell()
        context = start_context()
        self._told, tell = context.Pipe(duplex=False)
        stay, self._stay = context.Pipe(duplex=False)
        held = connection.Connection(os.dup(lock), readable=False)  # as which a process can be given a file
        arguments = (folder, run.folder, run.config.kind, log, tell, stay, held)
        self._process = make_process(run_child, arguments, daemon=False)
        try:
            self._started = start_process(self._process)
        finally:
            for theirs in (tell, stay, held):
                theirs.close()

    def status(self) -> int | None:
        """How it has ended: its exit status, negative for a signal; None where it has not."""
        return self._process.exitcode if self._started else SERVER_LOST

    @property
    def end(self) -> int:
        """What can be waited for until it has ended."""
        return self._process.sentinel if self._started else self._told.fileno()

    def told(self) -> Mapping[str, Any]:
        """The newest that it has told of how it stands."""
        newest: dict[str, Any] = {}
        with suppress(EOFError, OSError):  # it has ended, in the middle of a word or not
            while self._told.poll():
                found = json.loads(self._told.recv_bytes())
                if "error" in found:
                    self.error = found["error"]
                else:
                    newest = found
        return newest

    def last_words(self) -> str:
        """The last that it has printed, on one line; empty where it printed nothing."""
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(self._log_begins, file.seek(0, os.SEEK_END) - _LAST_WORDS))
            lines = file.read().decode(errors="replace").split("\n")
            return " ".join(line.strip() for line in lines if line.strip())
        return ""

    def ask_to_end(self) -> None:
        """Close the pipe that it waits at."""
        self._stay.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end, or so long."""
        if self._started:
            self._process.join(seconds)

    def close(self) -> None:
        """Kill it if it has not ended, and give back the pipes. Without the fork server nobody knows whether it has: it
        is waited for."""
        self.ask_to_end()
        if self.status() == SERVER_LOST:
            comes_to_its_end(self._told, _PATIENCE)
        elif self._started:
            self._process.kill()
            self._process.join()
        self._process.close()
        self._told.close()


def _settings(run: PlannedRun) -> str:
    return " ".join(f"{name}={said(value)}" for name, value in run.settings.items())
