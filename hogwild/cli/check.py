"""`hogwild check`: how far do runs of one training diverge, where first, why, and how bad is it?"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import Positional, arg

from hogwild import recipe
from hogwild.cli.numbers import whole
from hogwild.cli.settings import Settings
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.determinism.check import WINDOW, CheckSettings, check_subject
from hogwild.determinism.foreign import Command
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import OwnTraining, Subject
from hogwild.determinism.verdict import Tolerance, Verdict
from hogwild.errors import ArgumentError
from hogwild.experiment import Study
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot, plot_check
from hogwild.report.progress import telling
from hogwild.report.tables import check_report

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
    window: Annotated[int | None, whole("N"), arg(help_behavior_hint=f"(default: {WINDOW})")] = None
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
        settings = CheckSettings(
            runs=5 if self.runs is None else self.runs,
            tolerance=_tolerance(self.tolerance),
            explain=self.explain,
            other_seed=self.other_seed,
            other_workers=self.other_workers,
            window=WINDOW if self.window is None else self.window,
        )
        if self.plot and self.command:
            raise ArgumentError("--plot given beside --command, whose runs leave nothing on the way to draw")
        if self.plot and not can_plot():
            raise ArgumentError("--plot needs matplotlib; pip install 'hogwild[experiments]'")
        if self.command:
            return self._command(settings)
        subject, name = self._training()
        return self._check(Fresh(subject) if self.fresh_process else subject, settings, name)

    def _command(self, settings: CheckSettings) -> int:
        given = self.training.given()
        if self.experiment or given or self.fresh_process:
            other = self.experiment or (f"--{next(iter(given)).replace('_', '-')}" if given else "--fresh-process")
            raise ArgumentError(f"{other} given beside --command, which says by itself how to train")
        with closing(Command(self.command)) as subject:
            return self._check(subject, settings, "command")

    def _training(self) -> tuple[OwnTraining, str]:
        if not self.experiment:
            raise ArgumentError("no experiment named; hogwild check digits is a good first one (hogwild list)")
        found, saved = recipe.find(self.experiment)
        if isinstance(found, Study):
            raise ArgumentError(f"{found.name} is a study, and only trainings can be checked (hogwild list)")
        given = self.training.given() | ({"data": str(self.data.absolute())} if self.data else {})
        config = recipe.settle(found, given, saved)
        return OwnTraining.of_experiment(found, config), found.name

    def _check(self, subject: Subject, settings: CheckSettings, name: str) -> int:
        with recipe.directory(f"check-{name}", self.out) as out:
            with telling(subject.title, quiet=self.quiet) as tell:
                verdict = check_subject(subject, settings, tell)
            found: dict[str, Any] = {"name": name, **verdict.to_dict(), "out": str(out)}
            (out / "check.json").write_text(to_json(found) + "\n", encoding="utf-8")
            if self.plot:
                plot_check(verdict, out / "check.png")
        self._report(verdict, found, out)
        return DONE if verdict.passed else FAILED_CHECK

    def _report(self, verdict: Verdict, found: dict[str, Any], out: Path) -> None:
        if self.json:
            sys.stdout.write(to_json(found) + "\n")
            return
        console = Console()
        console.print(check_report(verdict))
        console.print(f"saved in {out}" + (", drawn in check.png" if self.plot else ""), style="dim", highlight=False)


def _tolerance(text: str) -> Tolerance | None:
    """From `1e-3` or `max_ulp=4`.

    Raises:
        ArgumentError: it is neither.
    """
    if not text:
        return None
    measure, equals, number = text.rpartition("=")
    try:
        return Tolerance(float(number), measure if equals else "relative_l2")
    except ValueError:
        raise ArgumentError(f"tolerance {text!r} is not a number; 1e-3 is one, and max_ulp=4 another") from None
