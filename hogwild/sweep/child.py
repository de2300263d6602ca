"""One run of a sweep, in a process of its own.

    the sweep   ── its end of a pipe, held open ──▶ standard input: when it closes, the run is saved and ends
                ◀── a line of JSON now and then ──  a pipe of its own: how the run stands, and what it failed by
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hogwild.errors import Terminated
from hogwild.workers.spawn import start_server_early

if TYPE_CHECKING:
    from hogwild.run.progress import Progress
    from hogwild.run.result import Run
    from hogwild.sweep.plan import PlannedRun

_TELL_EVERY = 0.3  # seconds
_TERMINATED = 128 + signal.SIGTERM


def run_child(folder: str, name: str, kind: str, channel: str) -> int:
    """Make the run of that name in the sweep's folder, or go on with it; returns the exit status.

    Args:
        folder: the sweep's.
        name: of the run.
        kind: of its workers, as its settings have it.
        channel: number of the descriptor to write to.
    """
    threading.Thread(target=_end_with_the_sweep, name="hogwild-sweep", daemon=True).start()

    def tell(found: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody reads on: the run is about to be ended
            os.write(int(channel), (json.dumps(found) + "\n").encode())

    try:
        signal.signal(signal.SIGTERM, _leave)
        start_server_early(kind)
        sys.stderr.write(f"{_train(Path(folder), name, tell)}\n")
    except KeyboardInterrupt:
        return _TERMINATED
    except Exception as error:
        from hogwild.errors import ArgumentError, one_line

        if not isinstance(error, ArgumentError):
            import traceback

            traceback.print_exc()
        sys.stderr.write(f"{error}\n")
        known = type(error).__module__.startswith("hogwild.")
        first = str(error).strip().partition("\n")[0] if known else f"{type(error).__name__}: {one_line(error)}"
        tell({"error": first or type(error).__name__})
        return 1
    return 0


def _end_with_the_sweep() -> None:
    """Wait until nobody holds the other end of standard input; then end as by SIGTERM, which saves the run."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Terminated(_TERMINATED)


def _train(folder: Path, name: str, tell: Callable[[dict[str, Any]], None]) -> Run:
    from hogwild.errors import ArgumentError, RunDirectoryError
    from hogwild.run.directory import CHECKPOINT
    from hogwild.sweep.plan import read_plan

    run = next((one for one in read_plan(folder).runs if one.folder == name), None)
    if run is None:
        raise ArgumentError(f"{folder} has no run named {name!r}")
    told = time.monotonic()

    def progress(now: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY:
            told = time.monotonic()
            figures = {key: float(value) for key, value in now.metrics.items()}
            tell({"updates": now.updates, "total": now.total, "metrics": {**figures, "loss": now.loss}})

    tell({"updates": 0, "total": 0, "metrics": {}})
    if (folder / name / CHECKPOINT).is_file():
        try:
            return _made(folder / name, run, progress, resume=True)
        except RunDirectoryError as error:
            sys.stderr.write(f"{error}; the run is done again\n")
    return _made(folder / name, run, progress, resume=False)


def _made(out: Path, run: PlannedRun, progress: Callable[[Progress], None], *, resume: bool) -> Run:
    from hogwild.errors import ArgumentError
    from hogwild.experiment import Training, experiment_of
    from hogwild.run.training import train_experiment

    training = experiment_of(run.config)
    if not isinstance(training, Training):
        raise ArgumentError(f"{run.config.name} is a study, and only trainings can be swept")
    before = out if resume else None
    return train_experiment(training, run.config, out=out, resume=before, overwrite=not resume, progress=progress)
