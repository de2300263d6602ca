"""Experiments: what a training and a study are, and how one is found by its name or by the config.toml of a run.

Trainings are what `run` and `check` can train; studies settle claims. An experiment is a module with one object named
`experiment`. Ours are the modules of `hogwild.experiments`; a package of yours may offer its own through the entry
point group of that name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from torch import nn

from hogwild._moved import names_from
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.optim.factory import Factory
from hogwild.rules.registry import refuse_idle

__getattr__ = names_from("hogwild.experiment", ("run.training",))  # train_experiment was here

ENTRY_POINTS = "hogwild.experiments"
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
"""What the command line's `--optimizer` can name."""


@dataclass(frozen=True)
class Problem:
    """What a training trains: the arguments of `hogwild.train` that are not settings.

    `evaluate` maps a model to named floats; the name `accuracy` is the one shown in tables. `predict` maps a
    classifier to (logits, targets) on the evaluation set, float (N, C) and int64 (N,), for `check` to say how many
    predictions differ.
    """

    model: nn.Module
    data: Any
    loss: Callable[[nn.Module, Any], Any]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    predict: Callable[[nn.Module], tuple[torch.Tensor, torch.Tensor]] | None = None


@dataclass(frozen=True)
class Training:
    """A training that the command line can run.

    `build(seed, data)` makes the model (initialised from `seed`) and loads the data; `data` is the folder
    named by `--data`, or None. `defaults` are the fields of `RunConfig` that suit this problem.
    """

    name: str
    question: str
    build: Callable[[int, Path | None], Problem]
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One row of a study's table: what is said, what was measured, and whether it holds.

    `expected` is False for a claim that the study sets out to refute: the study fails where
    `holds != expected`.
    """

    text: str
    measured: str
    holds: bool
    expected: bool = True

    @property
    def settled(self) -> bool:
        """True when the measurement came out as the study says it should."""
        return self.holds == self.expected


@dataclass(frozen=True)
class Table:
    """Measurements in rows; the first `left` columns are words, the others numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Findings:
    """What a study found: its claims in order, the figures it wrote, and one paragraph that answers the question;
    tables of measurements, where a claim each would be too many, and a legend to them."""

    claims: tuple[Claim, ...]
    answer: str
    figures: tuple[Path, ...] = ()
    tables: tuple[Table, ...] = ()
    legend: str = ""


@dataclass(frozen=True)
class StudySettings:
    """How a study is run: where its figures go, at length or not, the seed, and a folder of data if named."""

    out: Path
    full: bool = False
    seed: int = 0
    data: Path | None = None


@dataclass(frozen=True)
class Study:
    """A question, and the function that answers it by measurement."""

    name: str
    question: str
    run: Callable[[StudySettings], Findings]


Experiment = Training | Study


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
        close = get_close_matches(name, names(), 1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise ArgumentError(f"no experiment is named {name!r}; {meant}there are {', '.join(names())}")
    return _checked(name, points[name].load())


def _package() -> Iterable[str]:
    """The folders of our own experiments."""
    try:
        return import_module("hogwild.experiments").__path__
    except ImportError:
        return []


def _built_in(module: str) -> Experiment:
    """The experiment in that module of ours."""
    return _checked(module, import_module(f"hogwild.experiments.{module}").experiment)


def _checked(name: str, experiment: Any) -> Experiment:
    if not isinstance(experiment, Training | Study):
        raise ArgumentError(f"experiment {name!r} is a {type(experiment).__name__}, not a Training or a Study")
    return experiment


def optimizer_named(name: str, lr: float | None) -> Factory:
    """The factory of a named optimizer; `lr` None leaves torch's own default.

    Raises:
        ArgumentError: no optimizer has that name.
    """
    if name not in OPTIMIZERS:
        raise ArgumentError(f"optimizer {name!r} is not known; {', '.join(OPTIMIZERS)} are")
    return OPTIMIZERS[name] if lr is None else partial(OPTIMIZERS[name], lr=lr)


LEARNING_RATES: Mapping[str, float] = {
    "sgd": 0.1,
    "momentum": 0.01,
    "adam": 0.001,
    "adamw": 0.001,
    "adagrad": 0.01,
    "rmsprop": 0.001,
    "adafactor": 0.01,
}
"""What an optimizer begins with where neither the experiment nor a flag says otherwise."""


def find(name_or_path: str) -> tuple[Experiment, RunConfig | None]:
    """An experiment by its name, or the one that a configuration file names, with the settings in that file.

    Raises:
        ArgumentError: no such experiment, no such file, or not the settings of a run.
    """
    path = Path(name_or_path)
    is_path = path.suffix == ".toml" or os.sep in name_or_path or path.is_dir()
    if not is_path or name_or_path in names():
        return load(name_or_path), None
    if not path.exists():
        raise ArgumentError(f"{path}: No such file; give the name of an experiment, or the config.toml of a run")
    config = RunConfig.load(path / "config.toml" if path.is_dir() else path)
    return load(config.name), config


def settings_of(training: Training, given: Mapping[str, Any], saved: RunConfig | None = None) -> RunConfig:
    """All settings of a run: those given, over those of an earlier run, over the experiment's, over RunConfig's.

    Raises:
        ArgumentError: a value that cannot work, or an optimizer that nobody knows.
    """
    base = asdict(saved) if saved is not None else {**training.defaults, "name": training.name}
    base = {key: value for key, value in base.items() if value is not None}
    for one, other in (("epochs", "updates"), ("updates", "epochs")):
        if one in given:
            base.pop(other, None)
    base.setdefault("optimizer", "sgd")
    if given.get("optimizer", base["optimizer"]) != base["optimizer"]:
        base.pop("lr", None)  # it suited the other optimizer
    values = {**base, **given}
    refuse_idle(given, values.get("update", RunConfig.update))
    optimizer_named(values["optimizer"], None)
    values.setdefault("lr", LEARNING_RATES[values["optimizer"]])
    return RunConfig.from_mapping(values)
