"""One run of a sweep, in a process of its own, forked from one that has torch imported.

    the sweep   ── its end of a pipe, held open ──▶ another end: when it closes, the run is saved and ends
                ◀── JSON now and then ──            a pipe of its own: how the run stands, and what it failed by
                                    log file  ◀──   standard output and error

So no run outlives its sweep, also where that is killed: the kernel closes the pipe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from hogwild.errors import ArgumentError, RunDirectoryError, Terminated, one_line
from hogwild.experiment import Training, experiment_of
from hogwild.run.progress import Progress
from hogwild.run.result import Run
from hogwild.run.saved.directory import CHECKPOINT
from hogwild.run.training import train_experiment
from hogwild.sweep.plan import PlannedRun, read_plan
from hogwild.sweep.rows import with_loss
from hogwild.workers.process.early import fork_server
from hogwild.workers.process.spawn import begin

_TELL_EVERY = 0.3  # seconds
_TERMINATED = 128 + signal.SIGTERM


def run_child(
    folder: Path, name: str, kind: str, log: Path, channel: Connection, stay: Connection, lock: Connection
) -> None:
    """Make the run of that name in the sweep's folder, or go on with it, in a process that was started for it.

    Args:
        folder: the sweep's.
        name: of the run.
        kind: of its workers, as its settings have it.
        log: what is appended to, in place of standard output and standard error.
        channel: what is told of the run, as JSON.
        stay: its other end is closed when the run shall end, and by the death of the sweep.
        lock: of the sweep's folder, held until the run has ended.
    """
    os.setsid()  # Ctrl-C is for the sweep, which lets them save
    begin(signal.getsignal(signal.SIGINT))
    signal.signal(signal.SIGTERM, _leave)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    fork_server(kind)
    threading.Thread(target=_end_with_the_sweep, args=(stay,), name="hogwild-sweep", daemon=True).start()

    def tell(found: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody reads on: the run is about to be ended
            channel.send_bytes(json.dumps(found).encode())

    try:
        sys.stderr.write(f"{_train(folder, name, tell)}\n")
    except KeyboardInterrupt:
        sys.exit(_TERMINATED)
    except Exception as error:
        _tell_failure(error, tell)
        sys.exit(1)
    finally:
        lock.close()


def _tell_failure(error: Exception, tell: Callable[[dict[str, Any]], None]) -> None:
    if not isinstance(error, ArgumentError):
        traceback.print_exc()
    sys.stderr.write(f"{error}\n")
    known = type(error).__module__.startswith("hogwild.")
    first = str(error).strip().partition("\n")[0] if known else f"{type(error).__name__}: {one_line(error)}"
    tell({"error": first or type(error).__name__})


def _end_with_the_sweep(stay: Connection) -> None:
    """Wait until nobody holds the other end; then end as by SIGTERM, which saves the run."""
    with suppress(EOFError, OSError):
        stay.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Terminated(_TERMINATED)


def _train(folder: Path, name: str, tell: Callable[[dict[str, Any]], None]) -> Run:
    run = next((one for one in read_plan(folder).runs if one.folder == name), None)
    if run is None:
        raise ArgumentError(f"{folder} has no run named {name!r}")
    told = time.monotonic()

    def progress(now: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY:
            told = time.monotonic()
            figures = {key: float(value) for key, value in now.metrics.items()}
            tell({"updates": now.updates, "total": now.total, "metrics": with_loss(figures, now.loss)})

    tell({"updates": 0, "total": 0, "metrics": {}})
    if (folder / name / CHECKPOINT).is_file():
        try:
            return _made(folder / name, run, progress, resume=True)
        except RunDirectoryError as error:
            sys.stderr.write(f"{error}; the run is done again\n")
    return _made(folder / name, run, progress, resume=False)


def _made(out: Path, run: PlannedRun, progress: Callable[[Progress], None], *, resume: bool) -> Run:
    training = experiment_of(run.config)
    if not isinstance(training, Training):
        raise ArgumentError(f"{run.config.name} is a study, and only trainings can be swept")
    before = out if resume else None
    return train_experiment(training, run.config, out=out, resume=before, overwrite=not resume, progress=progress)
