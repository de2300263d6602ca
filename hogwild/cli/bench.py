"""`hogwild bench`: this machine, every rule beside what one would use instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from rich.console import Console
from tyro.conf import arg

from hogwild.bench.measure import measure
from hogwild.bench.plan import Settings, plan_of, profile_plan_of
from hogwild.bench.plot import plot
from hogwild.bench.profile import copy_rate, profiles
from hogwild.bench.profile_table import profile_report, profile_summary
from hogwild.bench.summary import Machine, summary, warnings_of
from hogwild.bench.table import following, report
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.errors import ArgumentError
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot

_MORE = """Every contender runs several times in turn, and is compared within each repeat.

  hogwild bench --quick                     a small choice, in about a minute
  hogwild bench --quick --optimizer adam    the same with Adam
  hogwild bench --problems mlp --batch-size 64 --optimizer sgd
  hogwild bench --contenders hogwild ordered --kind processes
  hogwild bench --profile --problems small-mlp    where a worker's step goes

Everything takes hours: choose. Exit status 1: a contender failed."""


@dataclass(frozen=True)
class Bench:
    """Measure this machine: every rule beside what you would use instead."""

    more: ClassVar[str] = _MORE

    problems: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """What to train: small-mlp, mlp, conv, embedding."""
    batch_size: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: 1 16 64)")] = ()
    """Samples in a batch."""
    optimizer: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: both)")] = ()
    """sgd, adam."""
    contenders: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """serial (always there), intra-op, recipe, ddp, and the rules."""
    kind: Annotated[tuple[str, ...], arg(metavar="KIND ...", help_behavior_hint="(default: both)")] = ()
    """Worker kinds of the rules: threads, processes."""
    workers: Annotated[int, arg(metavar="N", help_behavior_hint="(default: 2)")] = 2
    """Workers of whatever has several; rules are measured at 1, 2, 4, … workers up to it."""
    repeats: Annotated[int, arg(metavar="N", help_behavior_hint="(default: 5)")] = 5
    """Measurements of each contender."""
    seconds: Annotated[float, arg(metavar="S", help_behavior_hint="(default: 0.5)")] = 0.5
    """About how long the hand-written loop takes in one measurement."""
    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """Choose for a minute: three cases with SGD; serial, hogwild and ordered with processes."""
    profile: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show where a worker's step goes instead, and the commit beside the memory bandwidth; another problem here is
    large. By default batch 16, SGD, hogwild and ordered with processes."""
    plot: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw the result as an image."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Measure and report."""
        return self._profile() if self.profile else self._compare()

    def _compare(self) -> int:
        plan, machine, console = plan_of(self._settings()), Machine.here(), Console(stderr=True)
        self._check_plot()
        _warn(console, warnings_of(machine, plan.workers, plan.repeats))
        with following(console) as tell:
            found = summary(machine, plan, list(measure(plan, tell)))
        if self.json:
            sys.stdout.write(to_json(found) + "\n")
        else:
            Console().print(report(found))
        if self.plot is not None:
            plot(found, self.plot)
        return FAILED_CHECK if found["failed"] else DONE

    def _profile(self) -> int:
        if self.plot is not None:
            raise ArgumentError(f"--plot {self.plot} draws a comparison, and --profile makes none; leave one out")
        plan, machine, console = profile_plan_of(self._settings()), Machine.here(), Console(stderr=True)
        warnings = warnings_of(machine, plan.allow, plan.repeats)
        _warn(console, warnings)
        rate = copy_rate()
        with following(console) as tell:
            found = profile_summary(machine, plan, rate, warnings, list(profiles(plan, rate, tell)))
        if self.json:
            sys.stdout.write(to_json(found) + "\n")
        else:
            Console().print(profile_report(found))
        return DONE

    def _settings(self) -> Settings:
        return Settings(
            problems=self.problems,
            batch_sizes=self.batch_size,
            optimizers=self.optimizer,
            contenders=self.contenders,
            kinds=self.kind,
            workers=self.workers,
            repeats=self.repeats,
            seconds=self.seconds,
            quick=self.quick,
        )

    def _check_plot(self) -> None:
        """What would keep the result from being drawn, found before hours of measuring."""
        if self.plot is None:
            return
        if not can_plot():
            raise ArgumentError(f"--plot {self.plot} needs matplotlib; pip install 'hogwild[experiments]'")
        if not self.plot.absolute().parent.is_dir() or self.plot.is_dir():
            raise ArgumentError(f"--plot {self.plot} is not a file in a folder that exists")
        if self.plot.suffix not in (".png", ".svg", ".pdf"):
            raise ArgumentError(f"--plot {self.plot} does not end with .png, .svg or .pdf")


def _warn(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"hogwild: warning: {line}", style="yellow", soft_wrap=True, highlight=False, markup=False)
