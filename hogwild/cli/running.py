"""`hogwild run`, at work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from json import loads
from pathlib import Path
from shlex import quote
from typing import Any

from hogwild.cli.output import show, tell_usual_lr
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.cli.wanted import refuse_what_python_made, warn_of_other_machines
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, NotReproducible, flag_of
from hogwild.experiment import Study, StudySettings, Training, find, settings_of, why_usual_lr
from hogwild.nodes.invitation import invitation_to, refuse_no_secret
from hogwild.nodes.party import Party, leaving_together, meet, party_from_environment
from hogwild.report.objects import study_object, to_json
from hogwild.report.plots import can_plot, plot_run
from hogwild.report.progress import following, telling
from hogwild.report.tables import run_report, study_report
from hogwild.report.terminal import terminal
from hogwild.rules.registry import title_of
from hogwild.run.result import INTERRUPTED
from hogwild.run.saved.directory import new_directory, refuse_taken, writing
from hogwild.run.saved.record import has_ended
from hogwild.run.training import train_experiment

_OF_A_STUDY = ("seed", "data")  # settings that a study has too


@dataclass(frozen=True)
class Saved:
    """Where a run is saved (None: a new folder), which run it goes on with, with what other settings, and whether one
    there is replaced."""

    out: Path | None
    resume: Path | None
    change: Mapping[str, Any]
    overwrite: bool = False


@dataclass(frozen=True)
class Meeting:
    """How many machines train together, where they meet, the file of their secret, and how long one may be silent."""

    nodes: int
    join: str | None
    token: Path | None
    timeout: float

    def party(self) -> Party | None:
        """The machines, once they have met; None where there is one.

        Raises:
            ArgumentError: one of --nodes and --join without the other, or they cannot meet.
        """
        try:
            token = self.token.read_text(encoding="utf-8").strip() if self.token is not None else None
        except (OSError, ValueError) as error:
            raise ArgumentError(f"--token {self.token} cannot be read: {error}") from error
        refuse_no_secret(token, f"--token {self.token}")
        if self.join is not None:
            return meet(invitation_to(self.nodes, self.join, token, self.timeout))
        if self.nodes != 1:
            raise ArgumentError(
                f"--nodes {self.nodes} given without --join; give all machines one HOST:PORT to meet at"
            )
        return party_from_environment(token, self.timeout)


def run_command(
    wanted: str,
    given: Mapping[str, Any],
    saved: Saved,
    meeting: Meeting,
    *,
    full: bool,
    json: bool,
    quiet: bool,
) -> int:
    """Train or study what is wanted, save, and report; returns the exit status."""
    refuse_what_python_made(wanted, saved.resume)
    found, earlier = find(wanted)
    if isinstance(found, Study):
        return _study(found, given, out=saved.out, full=full, json=json, quiet=quiet)
    config = settings_of(found, given, earlier)
    if full:
        raise ArgumentError(f"--full is for studies, and {found.name} is a training; --epochs trains longer")
    usual = why_usual_lr(found, given, earlier)
    party = meeting.party()
    if config.average_every is not None and saved.resume is None:  # a resumed run needs the same number
        warn_of_other_machines(wanted, party.nodes if party is not None else 1)
    with leaving_together(party):
        if party is not None and not party.leads:
            return _help_train(found, config, saved, party)
        return _train(found, config, saved, usual, party, json=json, quiet=quiet)


def _help_train(training: Training, config: RunConfig, saved: Saved, party: Party) -> int:
    """Train on a machine that keeps no record and prints nothing."""
    out = saved.out or saved.resume  # where that of machine 0 is, which tells whether a run goes on in its folder
    train_experiment(training, config, out=out, resume=saved.resume, change=saved.change, party=party)
    return DONE


def _train(
    training: Training,
    config: RunConfig,
    saved: Saved,
    usual: str,
    party: Party | None,
    *,
    json: bool,
    quiet: bool,
) -> int:
    console = terminal(stderr=True)
    tell_usual_lr(config, usual, quiet=quiet)
    out, resume = saved.out or saved.resume, saved.resume
    if out is not None and out != resume and not saved.overwrite:
        refuse_taken(out)
    ended = resume is not None and has_ended(resume)
    with (
        new_directory(config.name, out) as folder,
        _telling_what_is_saved(folder) as place,
        following(partial(title_of, config), console, quiet=quiet) as progress,
    ):
        try:
            run = train_experiment(
                training,
                config,
                out=folder,
                resume=resume,
                overwrite=saved.overwrite,
                progress=progress,
                change=saved.change,
                party=party,
            )
        except NotReproducible as error:
            if (place / "config.toml").exists():  # workers had started, and one of them found it
                raise
            raise ArgumentError(str(error)) from error
    show(run.summary(), run_report(run, usual), json=json)
    if not (ended and folder == resume) and can_plot():
        plot_run(run, place / "run.png")
    return DONE


def _study(study: Study, given: Mapping[str, Any], *, out: Path | None, full: bool, json: bool, quiet: bool) -> int:
    for name in given:
        if name not in _OF_A_STUDY:
            raise ArgumentError(
                f"{flag_of(name)} is for trainings, and {study.name} is a study; it takes --full, --seed, --data"
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
        show(found, study_report(study, findings), json=json)
        with writing(path := folder / "findings.json"):
            path.write_text(to_json(found) + "\n", encoding="utf-8")
    return DONE if all(claim.settled for claim in findings.claims) else FAILED_CHECK


@contextmanager
def _telling_what_is_saved(out: Path) -> Iterator[Path]:
    """When the run is interrupted, say on standard error what of it is saved, and how to go on. Gives where `out` is,
    whatever the current folder is later."""
    place = out.absolute()
    try:
        yield place
    except (KeyboardInterrupt, SystemExit):
        record = place / "run.json"
        if record.is_file():
            found = loads(record.read_text(encoding="utf-8"))
            sys.stderr.write(f"hogwild: interrupted; {found['updates']} updates are saved in {out}\n")
            more = "goes on" if found["stopped"] == INTERRUPTED else "shows them: the run had ended"
            sys.stderr.write(f"         hogwild run --resume {quote(str(out))} {more}\n")
        else:
            sys.stderr.write("hogwild: interrupted before the first update; nothing is saved\n")
        raise
