"""`hogwild run`, at work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import Any

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

_OF_A_STUDY = ("seed", "data")  # settings that a study has too


def run_command(
    wanted: str, given: Mapping[str, Any], *, out: Path | None, resume: Path | None, full: bool, json: bool, quiet: bool
) -> int:
    """Train or study what is wanted, save, and report; returns the exit status."""
    found, saved = find(wanted)
    if isinstance(found, Study):
        return _study(found, given, out=out, full=full, json=json, quiet=quiet)
    config = settings_of(found, given, saved)
    if full:
        raise ArgumentError(f"--full is for studies, and {found.name} is a training; --epochs trains longer")
    return _train(found, config, out=out, resume=resume, json=json, quiet=quiet)


def _train(
    training: Training, config: RunConfig, *, out: Path | None, resume: Path | None, json: bool, quiet: bool
) -> int:
    console = Console(stderr=True)
    with (
        new_directory(config.name, out or resume) as folder,
        _telling_what_is_saved(folder),
        following(title_of(config), console, quiet=quiet) as progress,
    ):
        try:
            run = train_experiment(training, config, out=folder, resume=resume, progress=progress)
        except NotReproducible as error:
            if (folder / "config.toml").exists():  # workers had started, and one of them found it
                raise
            raise ArgumentError(str(error)) from error
    show(run.summary(), run_report(run), json=json)
    if can_plot():
        plot_run(run, folder / "run.png")
    return DONE


def _study(study: Study, given: Mapping[str, Any], *, out: Path | None, full: bool, json: bool, quiet: bool) -> int:
    for name in given:
        if name not in _OF_A_STUDY:
            flag = f"--{name.replace('_', '-')}"
            raise ArgumentError(
                f"{flag} is for trainings, and {study.name} is a study; it takes --full, --seed, --data"
            )
    began = time.monotonic()
    with new_directory(study.name, out) as folder:
        data = Path(given["data"]) if "data" in given else None
        settings = StudySettings(folder, full, given.get("seed", 0), data)
        with telling(study.name, quiet=quiet) as tell:
            tell("measuring")
            findings = study.run(settings)
        seconds = time.monotonic() - began
        found = study_object(study, findings, seconds=seconds, seed=settings.seed, out=folder)
        (folder / "findings.json").write_text(to_json(found) + "\n", encoding="utf-8")
    show(found, study_report(study, findings), json=json)
    return DONE if all(claim.settled for claim in findings.claims) else FAILED_CHECK


@contextmanager
def _telling_what_is_saved(out: Path) -> Iterator[None]:
    """When the run is interrupted, say on standard error what of it is saved, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        record = out / "run.json"
        if record.is_file():
            updates = loads(record.read_text(encoding="utf-8"))["updates"]
            sys.stderr.write(f"hogwild: interrupted; {updates} updates are saved in {out}\n")
            sys.stderr.write(f"         hogwild run --resume {out} goes on\n")
        else:
            sys.stderr.write("hogwild: interrupted before the first update; nothing is saved\n")
        raise
