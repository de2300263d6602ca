"""`hogwild sweep`, at work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_TRAINING, as_typed
from hogwild.cli.wanted import refuse_what_python_made
from hogwild.errors import ArgumentError
from hogwild.experiment import Study, find
from hogwild.nodes.invitation import refuse_torchrun
from hogwild.report.sweep_table import following_sweep, sweep_report
from hogwild.report.words import plural
from hogwild.run.saved.directory import new_directory
from hogwild.shared.limits import usable_cores
from hogwild.sweep.jobs import jobs_for, run_sweep
from hogwild.sweep.plan import SweepPlan, keep_plan, make_plan, read_plan, refuse_changed
from hogwild.sweep.rows import DONE as RUN_DONE
from hogwild.sweep.rows import FAILED, SweepRow


def sweep_command(
    experiment: str,
    values: Mapping[str, Sequence[Any]],
    *,
    out: Path | None,
    sample: int | None,
    sample_seed: int,
    jobs: int | None,
    json: bool,
    quiet: bool,
) -> int:
    """Plan a sweep, or find it planned, make its runs, and report; returns the exit status."""
    refuse_torchrun("a sweep", "start it without torchrun")
    refuse_what_python_made(experiment)
    training, saved = find(experiment)
    if isinstance(training, Study):
        raise ArgumentError(f"{training.name} is a study, and only trainings can be swept (hogwild list)")
    plan = make_plan(training, experiment, values, saved, sample=sample, sample_seed=sample_seed)
    if not plan.axes and not quiet:
        sys.stderr.write("hogwild: one run, for no flag has several values; --seed 0..4 or --lr 0.01 0.1 makes more\n")
    with new_directory(f"sweep-{plan.name}", out) as folder:
        return _make(folder, keep_plan(folder, plan), jobs, json=json, quiet=quiet)


def go_on_command(folder: Path, jobs: int | None, *, json: bool, quiet: bool) -> int:
    """Go on with the sweep in a folder, and report; returns the exit status."""
    refuse_torchrun("a sweep", "start it without torchrun")
    plan = read_plan(folder)
    refuse_changed(plan, folder)
    return _make(folder, plan, jobs, json=json, quiet=quiet)


def _make(folder: Path, plan: SweepPlan, jobs: int | None, *, json: bool, quiet: bool) -> int:
    at_once = jobs or jobs_for(plan.workers)
    began = time.monotonic()
    with _telling_how_to_go_on(folder), following_sweep(_title(plan, at_once), quiet=quiet) as (look, tell):
        rows = run_sweep(folder, plan, at_once, look, tell)
    rows = [replace(row, error=as_typed(row.error)) for row in rows]
    found = _object(folder, plan, rows, at_once, time.monotonic() - began)
    show(found, sweep_report(plan, rows, folder), json=json)
    return FAILED_TRAINING if any(row.status == FAILED for row in rows) else DONE


def _title(plan: SweepPlan, jobs: int) -> str:
    """What is done, and how much at once: the cores are not to be shared."""
    cores = usable_cores()
    at_once = f"{jobs} at once" if jobs > 1 else "one at a time"
    over = "; more workers than cores" if jobs * plan.workers > max(cores, plan.workers) else ""
    return (
        f"sweep of {plan.name}: {plural(len(plan.runs), 'run')}, {at_once}, of {plural(plan.workers, 'worker')} on "
        f"{cores:g} cores{over}"
    )


def _object(folder: Path, plan: SweepPlan, rows: Sequence[SweepRow], jobs: int, seconds: float) -> dict[str, Any]:
    """What `hogwild sweep --json` prints."""
    return {
        "name": plan.name,
        "experiment": plan.experiment,
        "out": folder,
        "axes": dict(plan.axes),
        "fixed": plan.plain_fixed,
        "sample": plan.sample,
        "jobs": jobs,
        "seconds": seconds,
        "done": sum(row.status == RUN_DONE for row in rows),
        "failed": sum(row.status == FAILED for row in rows),
        "rows": [{**row.to_dict(), "folder": folder / row.folder} for row in rows],
    }


@contextmanager
def _telling_how_to_go_on(folder: Path) -> Iterator[None]:
    """When the sweep is interrupted, say on standard error how to go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        sys.stderr.write(f"hogwild: interrupted; what was trained is saved in {folder}\n")
        sys.stderr.write(f"         hogwild sweep --resume {folder} goes on\n")
        raise
