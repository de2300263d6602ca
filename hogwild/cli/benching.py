"""`hogwild bench`, at work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hogwild.bench.measure import measure_cases
from hogwild.bench.padded import measure_padded
from hogwild.bench.padded_table import padded_report, padded_summary
from hogwild.bench.plan import BenchSettings, padded_plan_of, plan_of, profile_plan_of
from hogwild.bench.plot import plot
from hogwild.bench.plot_curves import plot_padded, plot_predictions
from hogwild.bench.predict import predictions
from hogwild.bench.profile import copy_rate, profiles
from hogwild.bench.profile_table import profile_report, profile_summary
from hogwild.bench.summary import Machine, bench_summary, warnings_of
from hogwild.bench.table import bench_report, following_bench
from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.errors import ArgumentError
from hogwild.report.plots import can_plot


def bench_command(settings: BenchSettings, *, plot_file: Path | None, json: bool) -> int:
    """Measure every contender, and report; returns the exit status."""
    plan, machine, console = plan_of(settings), Machine.here(), Console(stderr=True)
    _check_plot(plot_file)
    _warn(console, warnings_of(machine, plan.workers, plan.repeats))
    with following_bench(console) as tell:
        found = bench_summary(machine, plan, list(measure_cases(plan, tell)))
    show(found, bench_report(found), json=json)
    if plot_file is not None:
        plot(found, plot_file)
    return FAILED_CHECK if found["failed"] else DONE


def padded_command(
    settings: BenchSettings, pad_ms: float, staleness: Sequence[int], *, plot_file: Path | None, json: bool
) -> int:
    """Measure many workers whose gradients wait, and report; returns the exit status."""
    machine, console = Machine.here(), Console(stderr=True)
    plan = padded_plan_of(settings, pad_ms, staleness, machine.cores)
    _check_plot(plot_file)
    warnings = warnings_of(machine, 1, plan.repeats)
    _warn(console, warnings)
    with following_bench(console) as tell:
        found = padded_summary(machine, plan, warnings, list(measure_padded(plan, tell)))
    show(found, padded_report(found), json=json)
    if plot_file is not None:
        plot_padded(found, plot_file)
    return DONE


def profile_command(settings: BenchSettings, *, plot_file: Path | None, json: bool) -> int:
    """Measure where a worker's step goes, and report; returns the exit status."""
    plan, machine, console = profile_plan_of(settings), Machine.here(), Console(stderr=True)
    warnings = warnings_of(machine, plan.allow, plan.repeats)
    _warn(console, warnings)
    _check_plot(plot_file)
    rate = copy_rate()
    with following_bench(console) as tell:
        measured = list(profiles(plan, rate, tell))
    found = profile_summary(machine, plan, rate, warnings, measured)
    found["predicted"] = predictions(measured, machine.cores, copy_rate(machine.cores))
    show(found, profile_report(found), json=json)
    if plot_file is not None:
        plot_predictions(found, plot_file)
    return DONE


def _check_plot(file: Path | None) -> None:
    """What would keep the result from being drawn, found before hours of measuring."""
    if file is None:
        return
    if not can_plot():
        raise ArgumentError(f"--plot {file} needs matplotlib; pip install 'hogwild[experiments]'")
    if not file.absolute().parent.is_dir() or file.is_dir():
        raise ArgumentError(f"--plot {file} is not a file in a folder that exists")
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ArgumentError(f"--plot {file} does not end with .png, .svg or .pdf")


def _warn(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"hogwild: warning: {line}", style="yellow", soft_wrap=True, highlight=False, markup=False)
