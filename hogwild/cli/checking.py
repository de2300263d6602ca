"""`hogwild check`, at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from hogwild.cli.output import saving_nothing, show, tell_usual_lr
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.cli.wanted import refuse_what_python_made
from hogwild.determinism.check import CheckSettings, check_subject, so_far
from hogwild.determinism.foreign import ForeignCommand
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import Outcome, OwnTraining, Subject
from hogwild.determinism.verdict import Tolerance
from hogwild.errors import ArgumentError
from hogwild.experiment import Study, find, settings_of, why_usual_lr
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot, plot_check
from hogwild.report.progress import telling
from hogwild.report.tables import check_report
from hogwild.report.terminal import terminal
from hogwild.run.saved.directory import new_directory, writing

NamedSubject = tuple[str, Subject]  # what is checked, and what its folder is called


def check_settings(tolerance: str, named: Mapping[str, Any]) -> CheckSettings:
    """How to check: a tolerance such as `1e-3` or `max_ulp=4`, and the other settings that were named.

    Raises:
        ArgumentError: one of them cannot work.
    """
    return CheckSettings(tolerance=_tolerance(tolerance), typed=True, **named)


def _tolerance(text: str) -> Tolerance | None:
    if not text:
        return None
    measure, equals, number = text.rpartition("=")
    try:
        limit = float(number)
    except ValueError:
        raise ArgumentError(f"tolerance {text!r} is not a number; 1e-3 is one, and max_ulp=4 another") from None
    return Tolerance(limit, measure if equals else "relative_l2")


@contextmanager
def experiment_subject(
    experiment: str, given: Mapping[str, Any], *, fresh_process: bool, quiet: bool
) -> Iterator[NamedSubject]:
    """An experiment with these settings.

    Raises:
        ArgumentError: there is no such training, or a setting cannot work.
    """
    refuse_what_python_made(experiment)
    found, saved = find(experiment)
    if isinstance(found, Study):
        raise ArgumentError(f"{found.name} is a study, and only trainings can be checked (hogwild list)")
    config = settings_of(found, given, saved)
    tell_usual_lr(config, why_usual_lr(found, given, saved), quiet=quiet)
    subject = OwnTraining.of_experiment(found, config)
    yield found.name, Fresh(subject) if fresh_process else subject


@contextmanager
def command_subject(command: str) -> Iterator[NamedSubject]:
    """A command; what it wrote is removed in the end."""
    with closing(ForeignCommand(command)) as subject:
        yield "command", subject


def check_command(
    name: str,
    subject: Subject,
    settings: CheckSettings,
    *,
    out: Path | None,
    plot: bool,
    json: bool,
    quiet: bool,
    verbose: bool = False,
) -> int:
    """Repeat, compare, save and report; returns the exit status."""
    if plot and not can_plot():
        raise ArgumentError("--plot needs matplotlib; pip install 'hogwild[experiments]'")
    runs: list[Outcome] = []
    with ExitStack() as until_saved:
        with saving_nothing(lambda: so_far(runs)):
            folder = until_saved.enter_context(new_directory(f"check-{name}", out))
            with telling(subject.title, quiet=quiet) as tell:
                verdict = check_subject(subject, settings, tell, runs=runs)
        found: dict[str, Any] = {"name": name, **verdict.to_dict(), "out": str(folder)}
        show(found, check_report(verdict, verbose=verbose), json=json)
        with writing(path := folder / "check.json"):
            path.write_text(to_json(found) + "\n", encoding="utf-8")
        if plot:
            plot_check(verdict, folder / "check.png")
    if not json:
        told = f"saved in {folder}" + (", drawn in check.png" if plot else "")
        terminal().print(told, style="dim", highlight=False)
    return DONE if verdict.passed else FAILED_CHECK
