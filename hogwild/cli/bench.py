"""`hogwild bench`, its flags: this machine, every rule beside what one would use instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from hogwild.cli.values import number, whole, wholes
from hogwild.config import KINDS
from hogwild.errors import ArgumentError
from hogwild.rules.registry import LEAST_OVERHEAD, SAME_BITS

_MORE = """Every contender runs several times in turn, and is compared within each repeat.

  hogwild bench --quick                     a small choice, in about a minute
  hogwild bench --quick --optimizer adam    the same with Adam
  hogwild bench --problems mlp --batch-size 64 --optimizer sgd
  hogwild bench --contenders hogwild ordered --kind processes
  hogwild bench --profile --problems small-mlp    where a worker's step goes

Everything takes hours: choose. Exit status 1: a contender failed."""
_TWO = f"{LEAST_OVERHEAD} and {SAME_BITS} with processes"
_QUICK = f"Choose for a minute: three cases with SGD; serial, {_TWO}."
_PROFILE = f"Show where a worker's step goes instead; by default batch 16, SGD, {_TWO}."


@dataclass(frozen=True)
class BenchCommand:
    """Measure this machine: every rule beside what you would use instead."""

    more: ClassVar[str] = _MORE

    problems: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all but large)")] = ()
    """What to train: small-mlp, mlp, conv, embedding, large (10 million parameters)."""
    batch_size: Annotated[tuple[int, ...], wholes("N ..."), arg(help_behavior_hint="(default: 1 16 64)")] = ()
    """Samples in a batch."""
    optimizer: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: both)")] = ()
    """sgd, adam."""
    contenders: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """serial (always there), intra-op, recipe, ddp, and the rules."""
    kind: Annotated[
        tuple[str, ...],
        arg(metavar="KIND ...", help_behavior_hint="(default: both)", help=f"Kinds of worker: {', '.join(KINDS)}."),
    ] = ()
    workers: Annotated[int, whole("N"), arg(help_behavior_hint="(default: 2)")] = 2
    """Workers of whatever has several; rules are measured at 1, 2, 4, … workers up to it."""
    repeats: Annotated[int, whole("N"), arg(help_behavior_hint="(default: 5)")] = 5
    """Measurements of each contender."""
    seconds: Annotated[float, number("S"), arg(help_behavior_hint="(default: 0.5)")] = 0.5
    """About how long the hand-written loop takes in one measurement."""
    quick: Annotated[bool, arg(help_behavior_hint="", help=_QUICK)] = False
    profile: Annotated[bool, arg(help_behavior_hint="", help=_PROFILE)] = False
    plot: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw the result as an image."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Measure and report."""
        if self.profile and self.plot is not None:
            raise ArgumentError(f"--plot {self.plot} draws a comparison, and --profile makes none; leave one out")
        from hogwild.bench.plan import BenchSettings
        from hogwild.cli.benching import bench_command, profile_command

        settings = BenchSettings(
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
        if self.profile:
            return profile_command(settings, json=self.json)
        return bench_command(settings, plot_file=self.plot, json=self.json)
