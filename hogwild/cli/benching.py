"""`hogwild bench`, at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from hogwild.bench.measure import measure
from hogwild.bench.plan import Settings, plan_of, profile_plan_of
from hogwild.bench.plot import plot
from hogwild.bench.profile import copy_rate, profiles
from hogwild.bench.profile_table import profile_report, profile_summary
from hogwild.bench.summary import Machine, summary, warnings_of
from hogwild.bench.table import following, report
from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.errors import ArgumentError
from hogwild.report.plots import can_plot

if TYPE_CHECKING:
    from hogwild.cli.bench import Bench


def run(flags: Bench) -> int:
    """Measure and report; returns the exit status."""
    return _profile(flags) if flags.profile else _compare(flags)


def _compare(flags: Bench) -> int:
    plan, machine, console = plan_of(_settings(flags)), Machine.here(), Console(stderr=True)
    _check_plot(flags)
    _warn(console, warnings_of(machine, plan.workers, plan.repeats))
    with following(console) as tell:
        found = summary(machine, plan, list(measure(plan, tell)))
    show(found, report(found), json=flags.json)
    if flags.plot is not None:
        plot(found, flags.plot)
    return FAILED_CHECK if found["failed"] else DONE


def _profile(flags: Bench) -> int:
    if flags.plot is not None:
        raise ArgumentError(f"--plot {flags.plot} draws a comparison, and --profile makes none; leave one out")
    plan, machine, console = profile_plan_of(_settings(flags)), Machine.here(), Console(stderr=True)
    warnings = warnings_of(machine, plan.allow, plan.repeats)
    _warn(console, warnings)
    rate = copy_rate()
    with following(console) as tell:
        found = profile_summary(machine, plan, rate, warnings, list(profiles(plan, rate, tell)))
    show(found, profile_report(found), json=flags.json)
    return DONE


def _settings(flags: Bench) -> Settings:
    return Settings(
        problems=flags.problems,
        batch_sizes=flags.batch_size,
        optimizers=flags.optimizer,
        contenders=flags.contenders,
        kinds=flags.kind,
        workers=flags.workers,
        repeats=flags.repeats,
        seconds=flags.seconds,
        quick=flags.quick,
    )


def _check_plot(flags: Bench) -> None:
    """What would keep the result from being drawn, found before hours of measuring."""
    if flags.plot is None:
        return
    if not can_plot():
        raise ArgumentError(f"--plot {flags.plot} needs matplotlib; pip install 'hogwild[experiments]'")
    if not flags.plot.absolute().parent.is_dir() or flags.plot.is_dir():
        raise ArgumentError(f"--plot {flags.plot} is not a file in a folder that exists")
    if flags.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ArgumentError(f"--plot {flags.plot} does not end with .png, .svg or .pdf")


def _warn(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"hogwild: warning: {line}", style="yellow", soft_wrap=True, highlight=False, markup=False)
