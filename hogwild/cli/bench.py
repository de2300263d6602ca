"""`hogwild bench`, its flags: this machine, every rule beside what one would use instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from hogwild.cli.numbers import number, whole, wholes

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

    problems: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all but large)")] = ()
    """What to train: small-mlp, mlp, conv, embedding, large (10 million parameters)."""
    batch_size: Annotated[tuple[int, ...], wholes("N ..."), arg(help_behavior_hint="(default: 1 16 64)")] = ()
    """Samples in a batch."""
    optimizer: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: both)")] = ()
    """sgd, adam."""
    contenders: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """serial (always there), intra-op, recipe, ddp, and the rules."""
    kind: Annotated[tuple[str, ...], arg(metavar="KIND ...", help_behavior_hint="(default: both)")] = ()
    """Worker kinds of the rules: threads, processes."""
    workers: Annotated[int, whole("N"), arg(help_behavior_hint="(default: 2)")] = 2
    """Workers of whatever has several; rules are measured at 1, 2, 4, … workers up to it."""
    repeats: Annotated[int, whole("N"), arg(help_behavior_hint="(default: 5)")] = 5
    """Measurements of each contender."""
    seconds: Annotated[float, number("S"), arg(help_behavior_hint="(default: 0.5)")] = 0.5
    """About how long the hand-written loop takes in one measurement."""
    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """Choose for a minute: three cases with SGD; serial, hogwild and ordered with processes."""
    profile: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show where a worker's step goes instead; by default batch 16, SGD, hogwild and ordered with processes."""
    plot: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw the result as an image."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Measure and report."""
        from hogwild.cli.benching import run

        return run(self)
