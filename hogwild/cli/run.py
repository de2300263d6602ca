"""`hogwild run`, its flags: train an experiment, or answer a study's question."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, UseAppendAction, arg

from hogwild.cli.own import NoOwnFlags
from hogwild.cli.settings import GroupFlag, SettingFlags, given_settings, setting_flags, settings_in
from hogwild.cli.values import number, whole
from hogwild.config import AUTO, DECIDE_BITS
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import start_server_early

_MORE = """Examples:
  hogwild run digits                     two worker processes, without a lock
  hogwild run digits --update ordered    the same bits in every run
  hogwild run train.py                   a file of yours (hogwild new train.py)
  hogwild run RUN_DIR                    a run again, from what it wrote
  hogwild run --resume RUN_DIR           go on where a run was interrupted
  hogwild run --resume RUN_DIR --set lr=0.01
                                         the same, with another setting
  hogwild run reductions                 a study: a table of claims, measured

Exit status:
  0      done
  1      a study's claim came out otherwise than expected
  2      an argument is wrong, told in one line
  3      training failed, told with the worker's traceback
  130    Ctrl-C; what was trained so far is saved, as on SIGTERM (143)
         and where the terminal is closed (129)"""
_Training = setting_flags()


@dataclass(frozen=True)
class RunCommand:
    """Train an experiment, or answer a study's question by measurement."""

    more: ClassVar[str] = _MORE
    trains: ClassVar[bool] = True  # so that the fork server may start early

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """The name of an experiment (hogwild list shows them), a file of yours that defines one, or a run's folder."""
    own: Annotated[SettingFlags, arg(constructor=NoOwnFlags, name="")] = field(default_factory=NoOwnFlags)
    training: Annotated[SettingFlags, arg(constructor=_Training, name="")] = field(default_factory=_Training)
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/NAME-TIME)")] = None
    """Folder to save the run in; a new one, or an empty one."""
    overwrite: Annotated[bool, arg(help_behavior_hint="")] = False
    """Replace the run that is in the folder of --out."""
    resume: Annotated[Path | None, arg(metavar="RUN_DIR", help_behavior_hint="")] = None
    """Go on with the run in this folder from its last checkpoint."""
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE", help_behavior_hint="(repeatable)")] = ()
    """A setting, as its flag gives it. With --resume: go on with another one, or longer; recorded."""
    group: GroupFlag = ()
    """Options of the optimizer for parameters by name ('*.bias' weight_decay=0); the first that matches holds."""
    nodes: Annotated[int, whole("N"), arg(help_behavior_hint="(default: those of torchrun, or 1)")] = 1
    """Train on so many machines together; give each the same command."""
    join: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """With --nodes: an address of one of them, where they meet."""
    token: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: HOGWILD_TOKEN)")] = None
    """File with a secret that all machines must have."""
    node_timeout: Annotated[float, number("SECONDS"), arg(help_behavior_hint="(default: 5)")] = 5.0
    """Seconds after which a machine that says nothing is taken to be lost."""
    full: Annotated[bool, arg(help_behavior_hint="")] = False
    """For studies: measure at length."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Train or study, save, and report."""
        wanted, given = self._wanted(), given_settings(self)
        found = settings_in(self.set, self)
        resumed = self.resume is not None
        changes = {name: value for name, value in found.items() if resumed and name in DECIDE_BITS}
        given |= {name: value for name, value in found.items() if name not in changes}
        start_server_early(given.get("kind", AUTO))
        from hogwild.cli.running import Meeting, Saved, run_command

        saved = Saved(self.out, self.resume, changes, overwrite=self.overwrite)
        meeting = Meeting(self.nodes, self.join, self.token, self.node_timeout)
        return run_command(wanted, given, saved, meeting, full=self.full, json=self.json, quiet=self.quiet)

    def _wanted(self) -> str:
        """The name or the file of the experiment.

        Raises:
            ArgumentError: none is named, or two are, or there is no run to go on with.
        """
        if self.resume is not None and self.experiment:
            raise ArgumentError(
                f"{self.experiment!r} given beside --resume, which takes its experiment from the folder"
            )
        if self.resume is not None:
            config = self.resume / "config.toml"
            if not config.exists():
                missing = config if self.resume.exists() else "such folder"
                raise ArgumentError(
                    f"--resume {self.resume} is not the folder of a run: there is no {missing}; "
                    f"a run says at its end where it is saved, usually in runs/"
                )
            return str(config)
        if not self.experiment:
            raise ArgumentError("no experiment named; hogwild run digits is a good first one (hogwild list)")
        return self.experiment
