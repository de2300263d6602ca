"""`hogwild check`, its flags: how far do runs of one training diverge, where first, why, and how bad is it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.numbers import whole
from hogwild.cli.settings import Settings
from hogwild.errors import ArgumentError

_MORE = """Examples:
  hogwild check digits                          how far do runs that race diverge?
  hogwild check digits --update ordered         the same bits in every run
  hogwild check digits --explain                what does each source of differences do alone?
  hogwild check --command 'python train.py --out {out}'   somebody else's training

Exit status:
  0      all runs have the same bits, or are within the tolerance
  1      they have not
  2      an argument is wrong, told in one line
  3      a repeat could not be made"""


@dataclass(frozen=True)
class Check:
    """Repeat a training, and measure how far the runs diverge."""

    more: ClassVar[str] = _MORE

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """The name of an experiment (hogwild list shows them), or the config.toml that a run wrote."""
    runs: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 5)")] = None
    """How often to train."""
    fresh_process: Annotated[bool, arg(help_behavior_hint="")] = False
    """Make each repeat in a fresh interpreter."""
    tolerance: Annotated[str, arg(metavar="[MEASURE=]X", help_behavior_hint="(default: the same bits)")] = ""
    """Let runs differ by X in relative_l2 (or max_abs, max_ulp): 1e-3, or max_ulp=4."""
    explain: Annotated[bool, arg(help_behavior_hint="")] = False
    """Vary one source of differences at a time, and say what each does alone."""
    plot: Annotated[bool, arg(help_behavior_hint="")] = False
    """Draw how the runs drift apart, as check.png in the folder of --out."""
    command: Annotated[str, arg(metavar="TEXT", help_behavior_hint="")] = ""
    """Check this command instead; it writes its final state to the path that {out} stands for."""
    other_seed: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Train with this seed too: how far apart unrelated runs are."""
    other_workers: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Train with so many workers too."""
    window: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 100)")] = None
    """Updates over which race damage is measured before chaos has grown."""
    training: Settings = field(default_factory=Settings)
    data: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the data, for experiments that do not bring their own."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/check-NAME-TIME)")] = None
    """Folder to save the verdict in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Repeat, compare and report."""
        if not self.experiment and not self.command:
            raise ArgumentError("no experiment named; hogwild check digits is a good first one (hogwild list)")
        from hogwild.cli.checking import run

        return run(self)
