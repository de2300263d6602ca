"""`hogwild run`: train an experiment, or answer a study's question."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import Positional, arg

from hogwild import recipe
from hogwild.cli.numbers import whole
from hogwild.cli.settings import Settings
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, NotReproducible
from hogwild.experiment import Study, StudySettings, Training, train_experiment
from hogwild.report.objects import study_object, to_json
from hogwild.report.plots import can_plot, plot_run
from hogwild.report.progress import following, telling
from hogwild.report.tables import run_report, study_report

_MORE = """Examples:
  hogwild run digits                     two worker processes, without a lock
  hogwild run digits --update ordered    the same bits in every run
  hogwild run RUN_DIR/config.toml        a run again, from what it wrote
  hogwild run --resume RUN_DIR           go on where a run was interrupted
  hogwild run reductions                 a study: a table of claims, measured

Exit status:
  0      done
  1      a study's claim came out otherwise than expected
  2      an argument is wrong, told in one line
  3      training failed, told with the worker's traceback
  130    Ctrl-C; what was trained so far is saved, as on SIGTERM (143)"""


@dataclass(frozen=True)
class Run:
    """Train an experiment, or answer a study's question by measurement."""

    more: ClassVar[str] = _MORE

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """The name of an experiment (hogwild list shows them), or the config.toml that a run wrote."""
    training: Settings = field(default_factory=Settings)
    data: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the data, for experiments that do not bring their own."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/NAME-TIME)")] = None
    """Folder to save the run in."""
    checkpoint_every: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Save a checkpoint every N updates, in case the run is killed; Ctrl-C saves one by itself."""
    resume: Annotated[Path | None, arg(metavar="RUN_DIR", help_behavior_hint="")] = None
    """Go on with the run in this folder from its last checkpoint."""
    audit: Annotated[bool, arg(help_behavior_hint="")] = False
    """Measure what share of the computed gradient was applied (sgd only; costs time and memory)."""
    full: Annotated[bool, arg(help_behavior_hint="")] = False
    """For studies: measure at length."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Train or study, save, and report."""
        found, saved = recipe.find(self._wanted())
        if isinstance(found, Study):
            return self._study(found)
        return self._train(found, recipe.settle(found, self._given(), saved))

    def _wanted(self) -> str:
        if self.resume is not None and self.experiment:
            raise ArgumentError(
                f"{self.experiment!r} given beside --resume, which takes its experiment from the folder"
            )
        if self.resume is not None:
            return str(self.resume / "config.toml")
        if not self.experiment:
            raise ArgumentError("no experiment named; hogwild run digits is a good first one (hogwild list)")
        return self.experiment

    def _given(self) -> dict[str, Any]:
        """The settings that were named."""
        others = {
            "checkpoint_every": self.checkpoint_every,
            "data": str(self.data.absolute()) if self.data else None,
            "audit": self.audit or None,
        }
        return self.training.given() | {key: value for key, value in others.items() if value is not None}

    def _train(self, training: Training, config: RunConfig) -> int:
        if self.full:
            raise ArgumentError(f"--full is for studies, and {training.name} is a training; --epochs trains longer")
        console = Console(stderr=True)
        with (
            recipe.directory(config.name, self.out or self.resume) as out,
            _telling_what_is_saved(out),
            following(config.title, console, quiet=self.quiet) as progress,
        ):
            try:
                run = train_experiment(training, config, out=out, resume=self.resume, progress=progress)
            except NotReproducible as error:
                if (out / "config.toml").exists():  # workers had started, and one of them found it
                    raise
                raise ArgumentError(str(error)) from error
        if self.json:
            sys.stdout.write(to_json(run.summary()) + "\n")
        else:
            Console().print(run_report(run))
        if can_plot():
            plot_run(run, out / "run.png")
        return DONE

    def _study(self, study: Study) -> int:
        given = self._given()
        seed, _ = given.pop("seed", 0), given.pop("data", None)
        if given:
            flag = f"--{next(iter(given)).replace('_', '-')}"
            raise ArgumentError(
                f"{flag} is for trainings, and {study.name} is a study; it takes --full, --seed, --data"
            )
        began = time.monotonic()
        with recipe.directory(study.name, self.out) as out:
            settings = StudySettings(out, self.full, seed, self.data)
            with telling(study.name, quiet=self.quiet) as tell:
                tell("measuring")
                findings = study.run(settings)
            seconds = time.monotonic() - began
            result = to_json(study_object(study, findings, seconds=seconds, seed=settings.seed, out=out))
            (out / "findings.json").write_text(result + "\n", encoding="utf-8")
        if self.json:
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
