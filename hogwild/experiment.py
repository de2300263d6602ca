"""What `hogwild list` lists: trainings, which `run` and `check` can train, and studies, which settle claims.

An experiment is a module with one object named `experiment`, offered through the entry point group
`hogwild.experiments`; a package of yours may add its own to the same group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.errors import ArgumentError

ENTRY_POINTS = "hogwild.experiments"


@dataclass(frozen=True)
class Problem:
    """What a training trains: the arguments of `hogwild.train` that are not settings.

    `evaluate` maps a model to named floats; the name `accuracy` is the one shown in tables.
    """

    model: nn.Module
    data: Any
    loss: Callable[[nn.Module, Any], Any]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None


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
class Findings:
    """What a study found: its claims in order, the figures it wrote, and one paragraph that answers the question."""

    claims: tuple[Claim, ...]
    answer: str
    figures: tuple[Path, ...] = ()


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
