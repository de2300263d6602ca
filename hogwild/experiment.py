"""What `hogwild list` lists: trainings, which `run` and `check` can train, and studies, which settle claims.

An experiment is a module with one object named `experiment`, offered through the entry point group
`hogwild.experiments`; a package of yours may add its own to the same group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.optimizer_state import Factory
from hogwild.rules import Rule
from hogwild.run import Progress, Run
from hogwild.trainer import train_config
from hogwild.workers.processes import start_server

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
    """The names of all installed experiments, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def load(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ArgumentError: no installed experiment has that name.
    """
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in points:
        raise ArgumentError(f"no experiment is named {name!r}; there are {', '.join(sorted(points))}")
    experiment = points[name].load()
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


def train_experiment(
    training: Training,
    config: RunConfig,
    *,
    rule: Rule | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train an experiment as the configuration says; errors are those of `hogwild.train`."""
    if config.kind == "processes":
        start_server()
    problem = training.build(config.seed, Path(config.data) if config.data else None)
    return train_config(
        config,
        problem.model,
        problem.data,
        problem.loss,
        optimizer=optimizer_named(config.optimizer or "sgd", config.lr),
        rule=rule,
        evaluate=problem.evaluate,
        out=out,
        resume=resume,
        progress=progress,
    )
