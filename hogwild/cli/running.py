"""`hogwild run`, at work."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, NotReproducible
from hogwild.experiment import Study, StudySettings, Training, find, settings_of
from hogwild.report.objects import study_object, to_json
from hogwild.report.plots import can_plot, plot_run
from hogwild.report.progress import following, telling
from hogwild.report.tables import run_report, study_report
from hogwild.rules.registry import title_of
from hogwild.run.directory import new_directory
from hogwild.run.training import train_experiment

if TYPE_CHECKING:
    from hogwild.cli.run import Run


def run(flags: Run, wanted: str) -> int:
    """Train or study what is wanted, save, and report; returns the exit status."""
    found, saved = find(wanted)
    if isinstance(found, Study):
        return _study(flags, found)
    return _train(flags, found, settings_of(found, flags.given(), saved))


def _train(flags: Run, training: Training, config: RunConfig) -> int:
    if flags.full:
        raise ArgumentError(f"--full is for studies, and {training.name} is a training; --epochs trains longer")
    console = Console(stderr=True)
    with (
        new_directory(config.name, flags.out or flags.resume) as out,
        _telling_what_is_saved(out),
        following(title_of(config), console, quiet=flags.quiet) as progress,
    ):
        try:
            run = train_experiment(training, config, out=out, resume=flags.resume, progress=progress)
        except NotReproducible as error:
            if (out / "config.toml").exists():  # workers had started, and one of them found it
                raise
            raise ArgumentError(str(error)) from error
    show(run.summary(), run_report(run), json=flags.json)
    if can_plot():
        plot_run(run, out / "run.png")
    return DONE


def _study(flags: Run, study: Study) -> int:
    given = flags.given()
    seed, _ = given.pop("seed", 0), given.pop("data", None)
    if given:
        flag = f"--{next(iter(given)).replace('_', '-')}"
        raise ArgumentError(f"{flag} is for trainings, and {study.name} is a study; it takes --full, --seed, --data")
    began = time.monotonic()
    with new_directory(study.name, flags.out) as out:
        settings = StudySettings(out, flags.full, seed, flags.data)
        with telling(study.name, quiet=flags.quiet) as tell:
            tell("measuring")
            findings = study.run(settings)
        seconds = time.monotonic() - began
        result = to_json(study_object(study, findings, seconds=seconds, seed=settings.seed, out=out))
        (out / "findings.json").write_text(result + "\n", encoding="utf-8")
    if flags.json:
        sys.stdout.write(result + "\n")
    else:
        Console().print(study_report(study, findings))
    return DONE if all(claim.settled for claim in findings.claims) else FAILED_CHECK


@contextmanager
def _telling_what_is_saved(out: Path) -> Iterator[None]:
    """When the run is interrupted, say on standard error what of it is saved, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        record = out / "run.json"
        if record.is_file():
            updates = json.loads(record.read_text(encoding="utf-8"))["updates"]
            sys.stderr.write(f"hogwild: interrupted; {updates} updates are saved in {out}\n")
            sys.stderr.write(f"         hogwild run --resume {out} goes on\n")
        else:
            sys.stderr.write("hogwild: interrupted before the first update; nothing is saved\n")
        raise
