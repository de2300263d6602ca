"""Experiments: what a training and a study are, and how one is found by name, by file, or by a run.

Trainings are what `run` and `check` can train; studies settle claims. An experiment is a module with one object named
`experiment`. Ours are the modules of `hogwild.experiments`; a package of yours may offer its own through the entry
point group of that name. Any file may define one too, by a function that builds a `Problem`: see `define_experiment`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from hogwild._moved import names_from
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, a_type, guess, printable, warn_caller
from hogwild.experiment.code import Place, files_in, find_from, place_of
from hogwild.experiment.kinds import (
    Claim,
    Experiment,
    Findings,
    Problem,
    Study,
    StudySettings,
    Table,
    Training,
)
from hogwild.experiment.optimizers import LEARNING_RATES, OPTIMIZERS, optimizer_named
from hogwild.experiment.own import bound, define_experiment, own_code, own_experiment, own_names
from hogwild.own_code import OwnCode
from hogwild.rules.registry import refuse_idle

__all__ = [
    "LEARNING_RATES",
    "OPTIMIZERS",
    "Claim",
    "Experiment",
    "Findings",
    "Problem",
    "Study",
    "StudySettings",
    "Table",
    "Training",
    "bound",
    "define_experiment",
    "experiment_of",
    "find",
    "load",
    "names",
    "optimizer_named",
    "settings_of",
    "why_usual_lr",
]

__getattr__ = names_from("hogwild.experiment", ("run.training",))  # train_experiment was here

ENTRY_POINTS = "hogwild.experiments"
_OURS = "hogwild.experiments"  # the package of our own


def names() -> list[str]:
    """The names of all experiments, sorted: ours, and those that installed packages offer."""
    ours = {_built_in(module.name).name for module in iter_modules(_package()) if not module.name.startswith("_")}
    return sorted(ours | {point.name for point in entry_points(group=ENTRY_POINTS)})


def load(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ArgumentError: there is none.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    module = name.replace("-", "_")
    if name not in points and module.isidentifier() and any(one.name == module for one in iter_modules(_package())):
        return _built_in(module)
    if name not in points:
        meant = guess(name, names()) or guess(name, files_in(Path()), "the file {}.py")
        raise ArgumentError(f"no experiment is named {name!r}; {meant}there are {', '.join(names())}")
    return _checked(name, points[name].load())


def _package() -> Iterable[str]:
    """The folders of our own experiments."""
    try:
        return import_module("hogwild.experiments").__path__
    except ImportError:
        return []


def _built_in(module: str) -> Experiment:
    """The experiment in that module of ours; one with parameters of its own knows the file that it stands in."""
    name = f"{_OURS}.{module}"
    found = _checked(module, import_module(name).experiment)
    if isinstance(found, Training) and found.parameters:
        return own_experiment(Place(module=name, builder="build"))
    return found


def _checked(name: str, experiment: Any) -> Experiment:
    if not isinstance(experiment, Training | Study):
        raise ArgumentError(f"experiment {name!r} is {a_type(experiment)}, not a Training or a Study")
    return experiment


def find(name_or_path: str) -> tuple[Experiment, RunConfig | None]:
    """An experiment by its name, or the one that a configuration file names, with the settings in that file.

    Raises:
        ArgumentError: no such experiment, no such file, or not the settings of a run.
    """
    if name_or_path in names():
        return load(name_or_path), None
    path, place = Path(name_or_path), place_of(name_or_path)
    if place is not None:
        return own_experiment(place), None
    if path.suffix != ".toml" and os.sep not in name_or_path and not path.is_dir():
        if path.with_suffix(".py").is_file():
            raise ArgumentError(f"no experiment is named {name_or_path!r}; did you mean the file {path}.py?")
        return load(name_or_path), None
    if not path.exists():
        raise ArgumentError(f"{path}: No such file; give the name of an experiment, or the config.toml of a run")
    if path.is_dir() and not (path / "config.toml").exists():
        raise ArgumentError(
            f"{path} is a folder without a run in it, for it holds no config.toml; hogwild runs {path} lists runs that "
            f"are in folders of it"
        )
    config = RunConfig.load(path / "config.toml" if path.is_dir() else path)
    return experiment_of(config), config


def experiment_of(config: RunConfig) -> Experiment:
    """The experiment that a run with these settings trained. Warns where its file has changed since.

    Raises:
        ArgumentError: it is not there any more.
    """
    own = config.own
    if own is None:
        return load(config.name)
    if own.module.startswith(f"{_OURS}."):
        return _if_unchanged(load(config.name), own)
    if not Path(own.file).is_file():
        raise ArgumentError(
            f"{printable(own.file)}, in which the experiment {printable(config.name)!r} stands, is not there; put it "
            f"back, or name its new place as own.file in the run's config.toml"
        )
    if own.module:
        find_from(own.module, own.file)
    found = own_experiment(Place("" if own.module else own.file, own.module, own.builder))
    return _if_unchanged(replace(found, name=config.name) if isinstance(found, Training) else found, own)


def _if_unchanged(found: Experiment, own: OwnCode) -> Experiment:
    """That experiment; warns where its file is another than it was."""
    now = found.own.sha256 if isinstance(found, Training) and found.own is not None else own.sha256
    if now != own.sha256:
        warn_caller(
            f"{own.file} has changed since the run was begun: its SHA-256 was {own.sha256[:12]}… and is {now[:12]}…"
        )
    return found


def _left_lr(given: Mapping[str, Any], base: Mapping[str, Any]) -> float | None:
    """The learning rate that is left out, because it suits the optimizer that another was given for."""
    other = given.get("optimizer", base["optimizer"]) != base["optimizer"]
    return base.get("lr") if other else None


def why_usual_lr(training: Training, given: Mapping[str, Any], saved: RunConfig | None = None) -> str:
    """Why a run has the learning rate that its optimizer begins with, in words; empty where somebody named another."""
    base = {"optimizer": "sgd", **training.defaults} if saved is None else asdict(saved)
    left = _left_lr(given, base)
    if "lr" in given or (left is None and base.get("lr") is not None):
        return ""
    if left is None:
        return "its default"
    return f"its default; {left:g}, that of {printable(training.name)}, is for {base['optimizer']}"


def settings_of(training: Training, given: Mapping[str, Any], saved: RunConfig | None = None) -> RunConfig:
    """All settings of a run: those given, over those of an earlier run, over the experiment's, over RunConfig's.

    Raises:
        ArgumentError: a value that cannot work, or an optimizer that nobody knows.
    """
    base = asdict(saved) if saved is not None else {**training.defaults, "name": training.name}
    base = {key: value for key, value in base.items() if value is not None}
    if saved is not None:
        base["groups"] = saved.groups
    for one, other in (("epochs", "updates"), ("updates", "epochs")):
        if one in given:
            base.pop(other, None)
    base.setdefault("optimizer", "sgd")
    if _left_lr(given, base) is not None:
        del base["lr"]
    if training.own is not None:
        own = own_names(training)
        base["own"] = own_code(training, {key: given[key] for key in given if key in own}, saved)
        given = {key: value for key, value in given.items() if key not in own}
    values = {**base, **given}
    refuse_idle(given, values.get("update", RunConfig.update))
    optimizer_named(values["optimizer"], None)
    values.setdefault("lr", LEARNING_RATES[values["optimizer"]])
    return RunConfig.from_mapping(values)
