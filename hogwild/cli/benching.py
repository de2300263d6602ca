"""`hogwild bench`, at work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console, Group
from rich.text import Text

from hogwild.bench.comparison_table import bench_comparison_report
from hogwild.bench.measure import TellProgress, measure_cases
from hogwild.bench.padded import measure_padded
from hogwild.bench.padded_table import padded_report, padded_summary
from hogwild.bench.plan import BenchSettings, padded_plan_of, plan_of, profile_plan_of, several_plan_of
from hogwild.bench.plot import plot
from hogwild.bench.plot_curves import plot_padded, plot_predictions
from hogwild.bench.predict import predictions
from hogwild.bench.profile import copy_rate, profiles
from hogwild.bench.profile_table import profile_report, profile_summary
from hogwild.bench.saved import SAVED_AT, SavedBench, read_bench
from hogwild.bench.several import measure_several
from hogwild.bench.several_table import several_report, several_summary
from hogwild.bench.summary import Machine, bench_summary, warnings_of
from hogwild.bench.table import bench_report, following_bench
from hogwild.bench.then_and_now import compare_benches, refuse_nothing_in_common
from hogwild.bench.threshold import Threshold
from hogwild.cli.output import saving_nothing, show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.errors import ArgumentError
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot
from hogwild.report.terminal import terminal
from hogwild.run.saved.directory import staging

T = TypeVar("T")
_INTERRUPTED = "interrupted: what is missing was not measured"


@dataclass(frozen=True)
class BenchFiles:
    """What a bench draws and saves, and the saved one that it is compared with; None is none.

    Raises:
        ArgumentError: a file could not be written there; found before hours of measuring.
    """

    plot: Path | None = None
    save: Path | None = None
    compare: Path | None = None
    fail_if: str = ""

    def __post_init__(self) -> None:
        _check_plot(self.plot)
        if self.save is None:
            return
        if not self.save.absolute().parent.is_dir() or self.save.is_dir():
            raise ArgumentError(f"--save {self.save} is not a file in a folder that exists")
        with self._writing(), staging(self.save.parent):
            pass

    def keep(self, found: Mapping[str, Any]) -> None:
        """Save a summary as JSON, whole or not at all."""
        if self.save is None:
            return
        whole = {SAVED_AT: time.strftime("%Y-%m-%d %H:%M"), **found}
        with self._writing(), staging(self.save.parent) as folder:
            (folder / self.save.name).write_text(to_json(whole) + "\n", encoding="utf-8")
            (folder / self.save.name).replace(self.save)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArgumentError(f"--save {self.save} cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class _Measured(Generic[T]):
    """Results of a bench: all, or those that were there when it was interrupted."""

    results: list[T]
    interruption: BaseException | None = None

    @classmethod
    def of(cls, results: Iterable[T]) -> _Measured[T]:
        """As many as are measured; of an interruption before the first nothing is left."""
        found: list[T] = []
        try:
            for result in results:
                found.append(result)  # noqa: PERF402 - extend keeps nothing when it is interrupted
        except (KeyboardInterrupt, SystemExit) as interruption:
            if not found:
                with saving_nothing():
                    raise
            return cls(found, interruption)
        return cls(found)

    def noted_in(self, found: dict[str, Any]) -> dict[str, Any]:
        """A summary of them, which says that they are not all."""
        more = [] if self.interruption is None else [_INTERRUPTED]
        return {**found, "warnings": [*found["warnings"], *more]}

    def end(self) -> None:
        """Go on with the interruption, once what was measured is shown and saved."""
        if self.interruption is not None:
            raise self.interruption


def bench_command(settings: BenchSettings, files: BenchFiles, *, json: bool) -> int:
    """Measure every contender, and report; returns the exit status."""
    plan, machine, console = plan_of(settings), Machine.here(), terminal(stderr=True)
    threshold = Threshold.read(files.fail_if) if files.fail_if else None
    then = read_bench(files.compare) if files.compare is not None else None
    if then is not None:
        names = [contender.name for contender in plan.contenders]
        refuse_nothing_in_common(then, [case.name for case in plan.cases], names, str(files.compare))
    measured = _measure(console, warnings_of(machine, plan.workers, plan.repeats), partial(measure_cases, plan))
    found = measured.noted_in(bench_summary(machine, plan, measured.results))
    report, failed, kept = bench_report(found), bool(found["failed"]), {**found}
    if then is not None:
        comparison = compare_benches(then, SavedBench.of(found), threshold)
        found["comparison"] = comparison.to_dict()
        report = Group(report, Text(), bench_comparison_report(comparison, str(files.compare)))
        failed = failed or bool(comparison.failed)
    show(found, report, json=json)
    files.keep(kept)
    if files.plot is not None:
        plot(found, files.plot)
    measured.end()
    return FAILED_CHECK if failed else DONE


def _measure(console: Console, warnings: Sequence[str], measure: Callable[[TellProgress], Iterable[T]]) -> _Measured[T]:
    """Warn, and measure, which is told of meanwhile."""
    for line in warnings:
        console.print(f"hogwild: warning: {line}", style="yellow", soft_wrap=True, highlight=False, markup=False)
    with following_bench(console) as tell:
        return _Measured.of(measure(tell))


def padded_command(
    settings: BenchSettings, pad_ms: float, staleness: Sequence[int], files: BenchFiles, *, json: bool
) -> int:
    """Measure many workers whose gradients wait, and report; returns the exit status."""
    machine, console = Machine.here(), terminal(stderr=True)
    plan = padded_plan_of(settings, pad_ms, staleness, machine.cores)
    warnings = warnings_of(machine, 1, plan.repeats)
    measured = _measure(console, warnings, partial(measure_padded, plan))
    found = measured.noted_in(padded_summary(machine, plan, warnings, measured.results))
    show(found, padded_report(found), json=json)
    files.keep(found)
    if files.plot is not None:
        plot_padded(found, files.plot)
    measured.end()
    return DONE


def several_command(
    settings: BenchSettings,
    pad_ms: float,
    nodes: Sequence[int],
    delays_ms: Sequence[float],
    staleness: Sequence[int],
    files: BenchFiles,
    *,
    json: bool,
) -> int:
    """Measure several machines, and report; returns the exit status."""
    machine, console = Machine.here(), terminal(stderr=True)
    plan = several_plan_of(settings, pad_ms, nodes, delays_ms, staleness)
    warnings = warnings_of(machine, 1, plan.repeats)
    measured = _measure(console, warnings, partial(measure_several, plan))
    found = measured.noted_in(several_summary(machine, plan, warnings, measured.results))
    show(found, several_report(found), json=json)
    files.keep(found)
    measured.end()
    return DONE


def profile_command(settings: BenchSettings, files: BenchFiles, *, json: bool) -> int:
    """Measure where a worker's step goes, and report; returns the exit status."""
    plan, machine, console = profile_plan_of(settings), Machine.here(), terminal(stderr=True)
    warnings = warnings_of(machine, plan.allow, plan.repeats)
    rate = copy_rate()
    measured = _measure(console, warnings, partial(profiles, plan, rate))
    found = measured.noted_in(profile_summary(machine, plan, rate, warnings, measured.results))
    found["predicted"] = predictions(measured.results, machine.cores, copy_rate(machine.cores))
    show(found, profile_report(found), json=json)
    files.keep(found)
    if files.plot is not None:
        plot_predictions(found, files.plot)
    measured.end()
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
