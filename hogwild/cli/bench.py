"""`hogwild bench`, its flags: this machine, every rule beside what one would use instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import arg

from hogwild.cli.values import number, numbers, whole, wholes
from hogwild.config import KINDS
from hogwild.errors import ArgumentError
from hogwild.rules.registry import LEAST_OVERHEAD, SAME_BITS
from hogwild.workers.process.early import import_torch

_MORE = """Examples:
  hogwild bench --quick                     a small choice, in about a minute
  hogwild bench --quick --optimizer adam    the same with Adam
  hogwild bench --problems mlp --batch-size 64 --optimizer sgd
  hogwild bench --contenders hogwild ordered --kind processes
  hogwild bench --profile --problems small-mlp
                                            where a worker's step goes, and what
                                            more cores would do
  hogwild bench --peers                     words/s and quality beside gensim
                                            and implicit
  hogwild bench --pad-ms 5 --workers 64     many workers on few cores: each
                                            gradient waits 5 ms besides
  hogwild bench --pad-ms 20 --nodes 2 4 --delay-ms 0 5 20
                                            several machines, here, beside ddp
  hogwild bench --quick --save base.json    and later, to guard the speed:
  hogwild bench --quick --compare base.json --fail-if 'median<0.95'

Every contender runs several times in turn, compared within each repeat.

Everything takes hours: choose. Exit status 1: a contender failed, or --fail-if."""
_TWO = f"{LEAST_OVERHEAD} and {SAME_BITS} with processes"
_QUICK = f"Choose for a minute: three cases with SGD; serial, {_TWO}."
_PAD = f"Let each gradient wait so many milliseconds; by default mlp, batch 4, SGD, {_TWO}."
_STALENESS = "With --pad-ms: τ of a rule that has one, several to compare (default: enough to be busy)."
_COMPENSATION = f"What {SAME_BITS} does about old gradients: auto, as a training does, or none, which is less work."
_NODES = f"With --pad-ms: so many machines instead, processes here, under {SAME_BITS} and by DistributedDataParallel."
_DELAY = "With --nodes: what a packet needs to another machine. Above 0 it needs Linux and root (default: 0)."
_FAIL_IF = "With --compare: end with status 1 where this holds for a rule, as 'median<0.95' or 'median<0.95 and max<1'."
_PEERS = "Compare compiled kernels with gensim and implicit instead, where these are installed: the study `peers`."
_PROFILE = f"Show where a worker's step goes instead; by default batch 16, SGD, {_TWO}."


@dataclass(frozen=True)
class BenchCommand:
    """Measure this machine: every rule beside what you would use instead."""

    more: ClassVar[str] = _MORE

    problems: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all but thin-mlp and large)")
    ] = ()
    """What to train: small-mlp, thin-mlp, mlp, conv, embedding, large (10 million parameters)."""
    batch_size: Annotated[tuple[int, ...], wholes("N ..."), arg(help_behavior_hint="(default: 1 16 64)")] = ()
    """Samples in a batch."""
    optimizer: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: both)")] = ()
    """sgd, adam."""
    contenders: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """serial and cut (always there), intra-op, recipe, ddp, apart, and the rules."""
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
    pad_ms: Annotated[float | None, number("MS"), arg(help_behavior_hint="", help=_PAD)] = None
    staleness: Annotated[tuple[int, ...], wholes("T ..."), arg(help_behavior_hint="", help=_STALENESS)] = ()
    compensation: Annotated[
        Literal["auto", "none"], arg(metavar="NAME", help_behavior_hint="(default: auto)", help=_COMPENSATION)
    ] = "auto"
    nodes: Annotated[tuple[int, ...], wholes("N ..."), arg(help_behavior_hint="", help=_NODES)] = ()
    delay_ms: Annotated[tuple[float, ...], numbers("MS ..."), arg(help_behavior_hint="", help=_DELAY)] = ()
    peers: Annotated[bool, arg(help_behavior_hint="", help=_PEERS)] = False
    plot: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw the result as an image."""
    save: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Save the result as JSON, to be compared with or reported."""
    compare: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Say what became faster or slower since the bench saved in this file."""
    fail_if: Annotated[str, arg(metavar="TEXT", help_behavior_hint="", help=_FAIL_IF)] = ""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Measure and report."""
        if self.peers + self.profile + (self.pad_ms is not None) > 1:
            raise ArgumentError("--profile, --pad-ms and --peers measure different things; choose one")
        if self.staleness and self.pad_ms is None:
            raise ArgumentError(f"--staleness {self.staleness[0]} given, and only --pad-ms has it")
        if self.compensation != "auto" and (self.profile or self.peers):
            raise ArgumentError(f"--compensation {self.compensation} given with what measures none; leave it out")
        self._check_nodes()
        if self.fail_if and self.compare is None:
            raise ArgumentError(f"--fail-if {self.fail_if!r} given without --compare FILE, which says what to judge by")
        other = "--profile" if self.profile else "--pad-ms" if self.pad_ms is not None else ""
        if self.compare is not None and other:
            raise ArgumentError(f"--compare {self.compare} needs speeds beside the serial loop, and {other} has none")
        import_torch()
        if self.peers:
            from hogwild.cli.running import Meeting, Saved, run_command

            alone = Meeting(1, None, None, 5.0)
            return run_command("peers", {}, Saved(None, None, {}), alone, full=False, json=self.json, quiet=False)
        from hogwild.bench.plan import BenchSettings
        from hogwild.cli.benching import BenchFiles, bench_command, padded_command, profile_command, several_command

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
            compensation=self.compensation,
        )
        files = BenchFiles(self.plot, self.save, self.compare, self.fail_if)
        if self.profile:
            return profile_command(settings, files, json=self.json)
        if self.pad_ms is not None and self.nodes:
            return several_command(
                settings, self.pad_ms, self.nodes, self.delay_ms, self.staleness, files, json=self.json
            )
        if self.pad_ms is not None:
            return padded_command(settings, self.pad_ms, self.staleness, files, json=self.json)
        return bench_command(settings, files, json=self.json)

    def _check_nodes(self) -> None:
        if self.nodes and self.pad_ms is None:
            raise ArgumentError(f"--nodes {self.nodes[0]} given without --pad-ms MS, what a gradient waits; 20 works")
        if self.delay_ms and not self.nodes:
            raise ArgumentError(f"--delay-ms {self.delay_ms[0]:g} given without --nodes N, which has links; 2 4 works")
        if self.nodes and (self.contenders or self.kind or self.plot):
            other = "--contenders" if self.contenders else "--kind" if self.kind else "--plot"
            raise ArgumentError(f"{other} given with --nodes, which measures {SAME_BITS} beside ddp, and draws nothing")
