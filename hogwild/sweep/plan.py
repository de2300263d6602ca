"""The plan of a sweep: which runs it is, with what settings, in which folders. Written before the first run begins.

values of settings   →   their grid   →   a sample of it   →   a `PlannedRun` each
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from hogwild.config import OF_OLD_FILES, RunConfig
from hogwild.errors import ArgumentError, RunDirectoryError, printable
from hogwild.experiment import Training, settings_of
from hogwild.rules.registry import make_rule, owners_of, refuse_idle, rule_class
from hogwild.run.saved.directory import file_digest, refuse_taken, staging, writing
from hogwild.run.tensorboard import refuse_missing_tensorboard

FILE, LOGS = "sweep.json", "logs"
_FORMAT = 1
_MOST = 10_000  # runs of a sweep
_LONGEST = 60  # letters of a folder's name
_ODD = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        folder: the name of its directory in the sweep's.
        settings: those that differ between the runs; one that its rule does not have is left out.
        config: all of its settings.
    """

    folder: str
    settings: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True)
class SweepPlan:
    """A sweep.

    Attributes:
        experiment: what is trained, as it was named.
        axes: the settings that differ → their values.
        fixed: the other settings that were given.
        sample: how many runs were drawn of the grid; None: all.
        sample_seed: of the draw.
        runs: in the order of the grid.
    """

    experiment: str
    axes: Mapping[str, tuple[Any, ...]]
    fixed: Mapping[str, Any]
    sample: int | None
    sample_seed: int
    runs: tuple[PlannedRun, ...]

    @property
    def name(self) -> str:
        """What its runs are called."""
        return self.runs[0].config.name

    @property
    def workers(self) -> int:
        """The workers of its largest run."""
        return max(run.config.workers for run in self.runs)

    @property
    def plain_fixed(self) -> dict[str, Any]:
        """`fixed` as JSON values."""
        found = dict(self.fixed)
        if "groups" in found:
            found["groups"] = [group.to_mapping() for group in self.fixed["groups"]]
        return found

    def to_json(self) -> str:
        """What sweep.json holds."""
        return json.dumps({"format": _FORMAT, **asdict(self), "fixed": self.plain_fixed}, indent=1) + "\n"


def make_plan(
    training: Training,
    experiment: str,
    values: Mapping[str, Sequence[Any]],
    saved: RunConfig | None = None,
    *,
    sample: int | None = None,
    sample_seed: int = 0,
) -> SweepPlan:
    """The plan of a sweep.

    Args:
        training: what is trained.
        experiment: how it was named.
        values: setting, or own parameter of the training → the values that it takes.
        saved: settings of an earlier run, where it is that which is swept.
        sample: how many runs to draw of the grid.
        sample_seed: of the draw; the same one draws the same runs.

    Raises:
        ArgumentError: a rule is not known, a combination of the settings cannot work, or there are too many, or too few
            to draw from; or TensorBoard is asked for and not installed.
    """
    ordered = sorted(values, key=lambda name: name == "seed")  # last, so that its runs stand beside each other
    axes = {name: tuple(dict.fromkeys(values[name])) for name in ordered if len(set(values[name])) > 1}
    fixed = {name: given[0] for name, given in values.items() if name not in axes}
    for rule in values.get("update", ()):
        rule_class(rule)
    usual = training.defaults.get("update", RunConfig.update) if saved is None else saved.update
    update = str(fixed.get("update", usual))
    used = {name for rule in axes.get("update", (update,)) for name in _of_rule(values, rule)}
    refuse_idle({name: values[name][0] for name in values if name not in used}, update)
    grids = _grids(axes, update)
    size = sum(map(_size, grids))
    if sample is not None and not 1 <= sample <= size:
        raise ArgumentError(f"sample {sample} of a grid of {size:,} runs; 1 to {size:,} works")
    if (size if sample is None else sample) > _MOST:
        raise ArgumentError(f"the grid has {size:,} runs, over {_MOST:,}; --sample N draws N of them")
    drawn = None if sample is None else random.Random(sample_seed).sample(range(size), sample)
    points = _points(axes, grids, fixed, update, drawn)
    folders = _folders([point for point, _ in points])
    runs = [
        PlannedRun(folder, point, _settings(training, point, kept, saved))
        for folder, (point, kept) in zip(folders, points, strict=True)
    ]
    if any(run.config.tensorboard for run in runs):
        refuse_missing_tensorboard()
    return SweepPlan(experiment, axes, fixed, sample, sample_seed, tuple(runs))


def _grids(axes: Mapping[str, tuple[Any, ...]], update: str) -> list[Mapping[str, tuple[Any, ...]]]:
    """The grid of each rule, of the settings that it has, so that no run is in them twice; one grid where all rules
    have all settings. `update` is the rule where it is no axis."""
    rules = axes.get("update", (update,))
    found = [_of_rule({name: (rule,) if name == "update" else axes[name] for name in axes}, rule) for rule in rules]
    return [axes] if sum(map(_size, found)) == _size(axes) else [*found]


def _size(grid: Mapping[str, tuple[Any, ...]]) -> int:
    return prod(map(len, grid.values()))


def _points(
    axes: Mapping[str, tuple[Any, ...]],
    grids: Sequence[Mapping[str, tuple[Any, ...]]],
    fixed: Mapping[str, Any],
    update: str,
    drawn: Sequence[int] | None,
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(settings that differ, other settings) of each run of the grids, or of those that were drawn, by number; the last
    axis runs fastest. What belongs to another rule is left out."""
    numbers = range(sum(map(_size, grids))) if drawn is None else drawn
    places = {name: {value: place for place, value in enumerate(given)} for name, given in axes.items()}
    found = [_point(grids, number) for number in numbers]
    found.sort(key=lambda point: [places[name][point[name]] if name in point else 0 for name in axes])
    return [(point, _of_rule(fixed, point.get("update", update))) for point in found]


def _point(grids: Sequence[Mapping[str, tuple[Any, ...]]], number: int) -> dict[str, Any]:
    """A point of grids that lie one after the other; the last axis runs fastest."""
    for grid in grids[:-1]:
        if number < _size(grid):
            return _point_of(grid, number)
        number -= _size(grid)
    return _point_of(grids[-1], number)


def _point_of(axes: Mapping[str, tuple[Any, ...]], number: int) -> dict[str, Any]:
    """A point of the grid; the last axis runs fastest."""
    found: dict[str, Any] = {}
    for name, given in reversed(list(axes.items())):
        number, place = divmod(number, len(given))
        found[name] = given[place]
    return {name: found[name] for name in axes}


def _of_rule(settings: Mapping[str, Any], rule: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if rule in owners_of(name)}


def _settings(
    training: Training, point: Mapping[str, Any], kept: Mapping[str, Any], saved: RunConfig | None
) -> RunConfig:
    try:
        config = settings_of(training, {**kept, **point}, saved)
        make_rule(config.update, config).check(config.workers)
    except ArgumentError as error:
        where = f"{title(point)}: " if point else ""
        raise ArgumentError(f"{where}{error}") from error
    return config


def title(settings: Mapping[str, Any]) -> str:
    """Settings in a line: lr 0.1, seed 0."""
    return ", ".join(f"{name} {said(value)}" for name, value in settings.items())


def said(value: Any) -> str:
    """A value as a person types it."""
    if isinstance(value, list | tuple):
        return ",".join(map(said, value))
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- names of folders


def _folders(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each run, of its settings; a number where two would have the same, or it would be long."""
    found = [_folder(point) for point in points]
    times = Counter(name.lower() for name in [*found, LOGS])  # some file systems do not tell letters apart
    return [
        name if times[name.lower()] == 1 and _is_folder(name) and len(name) <= _LONGEST else _numbered(number, point)
        for number, (name, point) in enumerate(zip(found, points, strict=True))
    ]


def _folder(point: Mapping[str, Any]) -> str:
    parts = (said(value) if isinstance(value, str) else f"{name}{said(value)}" for name, value in point.items())
    return "-".join(_ODD.sub("_", part) for part in parts)


def _numbered(number: int, point: Mapping[str, Any]) -> str:
    return f"run{number:03}-{hashlib.sha256(repr(point).encode()).hexdigest()[:6]}" if point else "run"


# --- in the sweep's folder


def read_plan(folder: Path) -> SweepPlan:
    """The plan of the sweep in a folder.

    Raises:
        ArgumentError: there is none.
        RunDirectoryError: it is damaged.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("format") != _FORMAT:
            raise ValueError("another version wrote it")
        runs = [PlannedRun(one["folder"], one["settings"], _config(one["config"])) for one in found.pop("runs")]
        axes = {name: tuple(map(_hashable, given)) for name, given in found.pop("axes").items()}
        if not runs or not all(_is_folder(run.folder) for run in runs):
            raise ValueError("runs is malformed")
        if "groups" in (fixed := found.pop("fixed")):
            fixed["groups"] = runs[0].config.groups
        return SweepPlan(axes=axes, fixed=fixed, runs=tuple(runs), **found)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArgumentError(
            f"{folder} is not the folder of a sweep: there is no {path}; a sweep says at its begin where it is saved"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = printable(f"{type(error).__name__}: {error}")
        raise RunDirectoryError(f"{path} is not the plan of a sweep: {why}") from error


def _config(values: Mapping[str, Any]) -> RunConfig:
    return RunConfig.from_mapping({**OF_OLD_FILES, **values, "changes": tuple(values.get("changes", ()))})


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_folder(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and _ODD.sub("_", name) == name and name.strip(".") != ""


def keep_plan(folder: Path, plan: SweepPlan) -> SweepPlan:
    """Write the plan into the sweep's folder; where one is there already, give that back if it is the same sweep.

    Raises:
        ArgumentError: the folder holds another sweep, or anything else.
        RunDirectoryError: it cannot be written.
    """
    if (folder / FILE).exists():
        kept = read_plan(folder)
        refuse_changed(kept, folder)
        _refuse_other(kept, plan, folder)
        return kept
    refuse_taken(folder, replaces=False)
    with staging(folder) as made:
        with writing(folder / FILE):
            (made / FILE).write_text(plan.to_json(), encoding="utf-8")
        (made / FILE).replace(folder / FILE)
    return plan


def refuse_changed(plan: SweepPlan, folder: Path) -> None:
    """Refuse to go on with a sweep whose file is another one now: its runs would not be of one training.

    Raises:
        ArgumentError: it has changed, or is not there.
    """
    own = plan.runs[0].config.own
    if own is None:
        return
    path = Path(own.file)
    if not path.is_file() or file_digest(path) != own.sha256:
        what = "has changed" if path.is_file() else "is not there any more"
        raise ArgumentError(
            f"{path} {what} since the sweep in {folder} was planned, and its runs would not be of one training; put it "
            f"back, or begin another sweep"
        )


def _refuse_other(kept: SweepPlan, plan: SweepPlan, folder: Path) -> None:
    """Refuse a plan that is not the one in the folder; the message names the first thing that differs."""
    for part in (_as_named, _in_full):
        before, now = part(kept), part(plan)
        for name in {**now, **before}:
            if before.get(name) != now.get(name):
                here, there = _told(now.get(name)), _told(before.get(name))
                raise ArgumentError(
                    f"{name} is {here}, and the sweep in {folder} was planned with {there}; hogwild sweep --resume "
                    f"{folder} goes on with it, or name another folder"
                )


def _as_named(plan: SweepPlan) -> dict[str, Any]:
    """What was asked for, by the names that a person knows."""
    drawn = {"sample": plan.sample, "sample_seed": plan.sample_seed} if plan.sample is not None else {}
    return _as_json({"experiment": plan.name, **plan.plain_fixed, **plan.axes, **drawn})


def _in_full(plan: SweepPlan) -> dict[str, Any]:
    """Every setting of every run."""
    return _as_json(
        {f"{name} of {run.folder}": value for run in plan.runs for name, value in asdict(run.config).items()}
    )


def _as_json(found: dict[str, Any]) -> dict[str, Any]:
    """As it is read back from a file."""
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _told(value: Any) -> str:
    if value is None:
        return "not given"
    return " ".join(map(said, value)) if isinstance(value, list) else said(value)
