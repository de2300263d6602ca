"""`hogwild check`, at work."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.determinism.check import WINDOW, CheckSettings, check_subject
from hogwild.determinism.foreign import Command
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import OwnTraining, Subject
from hogwild.determinism.verdict import Tolerance, Verdict
from hogwild.errors import ArgumentError
from hogwild.experiment import Study, find, settings_of
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot, plot_check
from hogwild.report.progress import telling
from hogwild.report.tables import check_report
from hogwild.run.directory import new_directory

if TYPE_CHECKING:
    from hogwild.cli.check import Check


def run(flags: Check) -> int:
    """Repeat, compare and report; returns the exit status."""
    settings = CheckSettings(
        runs=5 if flags.runs is None else flags.runs,
        tolerance=_tolerance(flags.tolerance),
        explain=flags.explain,
        other_seed=flags.other_seed,
        other_workers=flags.other_workers,
        window=WINDOW if flags.window is None else flags.window,
    )
    if flags.plot and flags.command:
        raise ArgumentError("--plot given beside --command, whose runs leave nothing on the way to draw")
    if flags.plot and not can_plot():
        raise ArgumentError("--plot needs matplotlib; pip install 'hogwild[experiments]'")
    if flags.command:
        return _command(flags, settings)
    subject, name = _training(flags)
    return _check(flags, Fresh(subject) if flags.fresh_process else subject, settings, name)


def _command(flags: Check, settings: CheckSettings) -> int:
    given = flags.training.given()
    if flags.experiment or given or flags.fresh_process:
        other = flags.experiment or (f"--{next(iter(given)).replace('_', '-')}" if given else "--fresh-process")
        raise ArgumentError(f"{other} given beside --command, which says by itself how to train")
    with closing(Command(flags.command)) as subject:
        return _check(flags, subject, settings, "command")


def _training(flags: Check) -> tuple[OwnTraining, str]:
    found, saved = find(flags.experiment)
    if isinstance(found, Study):
        raise ArgumentError(f"{found.name} is a study, and only trainings can be checked (hogwild list)")
    given = flags.training.given() | ({"data": str(flags.data.absolute())} if flags.data else {})
    config = settings_of(found, given, saved)
    return OwnTraining.of_experiment(found, config), found.name


def _check(flags: Check, subject: Subject, settings: CheckSettings, name: str) -> int:
    with new_directory(f"check-{name}", flags.out) as out:
        with telling(subject.title, quiet=flags.quiet) as tell:
            verdict = check_subject(subject, settings, tell)
        found: dict[str, Any] = {"name": name, **verdict.to_dict(), "out": str(out)}
        (out / "check.json").write_text(to_json(found) + "\n", encoding="utf-8")
        if flags.plot:
            plot_check(verdict, out / "check.png")
    _report(flags, verdict, found, out)
    return DONE if verdict.passed else FAILED_CHECK


def _report(flags: Check, verdict: Verdict, found: dict[str, Any], out: Path) -> None:
    if flags.json:
        sys.stdout.write(to_json(found) + "\n")
        return
    console = Console()
    console.print(check_report(verdict))
    console.print(f"saved in {out}" + (", drawn in check.png" if flags.plot else ""), style="dim", highlight=False)


def _tolerance(text: str) -> Tolerance | None:
    """From `1e-3` or `max_ulp=4`.

    Raises:
        ArgumentError: it is neither.
    """
    if not text:
        return None
    measure, equals, number = text.rpartition("=")
    try:
        limit = float(number)
    except ValueError:
        raise ArgumentError(f"tolerance {text!r} is not a number; 1e-3 is one, and max_ulp=4 another") from None
    return Tolerance(limit, measure if equals else "relative_l2")
