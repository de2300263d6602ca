"""`hogwild sweep`, its flags: a training at every point of a grid of settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, UseAppendAction, arg

from hogwild.cli.own import NoOwnFlags
from hogwild.cli.settings import GroupFlag, SettingFlags, given_settings, readers_of, setting_flags, settings_in
from hogwild.cli.values import whole
from hogwild.errors import ArgumentError, flag_of
from hogwild.workers.process.early import start_server_early

_MORE = """A flag with several values makes a run with each; several such flags, the grid.

Examples:
  hogwild sweep digits --lr 0.01 0.1 --update hogwild ordered --seed 0..4
                                         twenty runs; 0..4 is 0 1 2 3 4
  hogwild sweep train.py --hidden 16 64 --lr 0.01 0.1 --sample 3
                                         three of the four
  hogwild sweep --resume SWEEP_DIR       go on where a sweep was interrupted

Exit status:
  0      all runs are done
  2      an argument is wrong, told in one line
  3      a run failed; the others are done
  130    Ctrl-C; what was trained so far is saved, as on SIGTERM (143)
         and where the terminal is closed (129)"""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_LONGEST = 10_000  # values of a range
_Training = setting_flags(several=True)


@dataclass(frozen=True)
class SweepCommand:
    """Train an experiment at every point of a grid of settings."""

    more: ClassVar[str] = _MORE
    several: ClassVar[bool] = True
    trains: ClassVar[bool] = True  # in processes that are forked

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """The name of an experiment (hogwild list shows them), a file of yours that defines one, or a run's folder."""
    own: Annotated[SettingFlags, arg(constructor=NoOwnFlags, name="")] = field(default_factory=NoOwnFlags)
    training: Annotated[SettingFlags, arg(constructor=_Training, name="")] = field(default_factory=_Training)
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE", help_behavior_hint="(repeatable)")] = ()
    """A setting of all runs, as its flag gives it."""
    group: GroupFlag = ()
    """Options of the optimizer for parameters by name ('*.bias' weight_decay=0), in all runs."""
    sample: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: all of it)")] = None
    """Draw so many runs of the grid."""
    sample_seed: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 0)")] = None
    """Decides which are drawn."""
    jobs: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: as the cores allow)")] = None
    """Runs at once."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/sweep-NAME-TIME)")] = None
    """Folder to save the runs in. The same command on the same folder goes on with the sweep."""
    resume: Annotated[Path | None, arg(metavar="SWEEP_DIR", help_behavior_hint="")] = None
    """Go on with the sweep in this folder."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Plan, train and report."""
        values = self._values()
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs {self.jobs} is below 1; 1 or more works")
        if self.sample_seed is not None and self.sample is None:
            raise ArgumentError(f"--sample-seed {self.sample_seed} given without --sample; nothing is drawn")
        if self.resume is not None:
            self._refuse_beside_resume(values)
        elif not self.experiment:
            raise ArgumentError("no experiment named; hogwild sweep digits --seed 0..2 is a good first one")
        start_server_early("processes")
        from hogwild.cli.sweeping import go_on_command, sweep_command

        if self.resume is not None:
            return go_on_command(self.resume, self.jobs, json=self.json, quiet=self.quiet)
        return sweep_command(
            self.experiment,
            values,
            out=self.out,
            sample=self.sample,
            sample_seed=self.sample_seed or 0,
            jobs=self.jobs,
            json=self.json,
            quiet=self.quiet,
        )

    def _values(self) -> dict[str, tuple[Any, ...]]:
        """The values of each setting that was given."""
        fixed, readers = settings_in(self.set, self), readers_of(self)
        given = given_settings(self)
        if "groups" in given:
            fixed["groups"] = given.pop("groups")
        read = {name: _read(name, texts, readers[name]) for name, texts in given.items()}
        return {**read, **{name: (_hashable(value),) for name, value in fixed.items()}}

    def _refuse_beside_resume(self, values: dict[str, tuple[Any, ...]]) -> None:
        beside = [self.experiment] if self.experiment else []
        beside += [flag_of(name) for name in values]
        beside += [f"--{name}" for name in ("sample", "out") if getattr(self, name) is not None]
        if beside:
            raise ArgumentError(f"{beside[0]} given beside --resume, which takes the plan of the sweep from its folder")


def _read(name: str, texts: tuple[str, ...], read: Callable[[str], Any]) -> tuple[Any, ...]:
    flag = flag_of(name)
    if not texts:
        raise ArgumentError(f"{flag} given without a value")
    found: list[Any] = []
    for text in texts:
        try:
            found.extend(_hashable(read(one)) for one in _spread(text))
        except ValueError as error:
            hint = "; a range is of whole numbers, as in 0..4" if ".." in text else ""
            raise ArgumentError(f"{flag}: {error}{hint}") from None
    return tuple(found)


def _spread(text: str) -> list[str]:
    """The texts that a range stands for: 0..4 for 0 1 2 3 4."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _LONGEST:
        raise ValueError(f"{text!r} has {'no' if last < first else 'too many'} values")
    return [str(number) for number in range(first, last + 1)]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
