"""What an experiment is: a training, which builds a problem, or a study, which settles claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hogwild.experiment.parameters import Parameter
from hogwild.own_code import OwnCode

if TYPE_CHECKING:
    from hogwild.run.callback import Callback


@dataclass(frozen=True)
class Problem:
    """What a training trains: the arguments of `hogwild.train` that are not settings.

    Attributes:
        model: an `nn.Module` on the CPU.
        data: what it is trained on; a `hogwild.Kernel`, which draws that itself, and needs no loss.
        loss: (model, batch) → the loss.
        evaluate: model → named floats; the name `accuracy` is the one shown in tables.
        predict: classifier → (logits, targets) on the evaluation set, float (N, C) and int64 (N,) or None, for `check`
            to say how many predictions differ. It comes in eval mode, and gradients are off.
        callbacks: told of each run, see `hogwild.Callback`. `check` calls those alone that may stop a run.
    """

    model: nn.Module
    data: Any
    loss: Callable[[nn.Module, Any], Any] | None = None
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    predict: Callable[[nn.Module], tuple[torch.Tensor, torch.Tensor | None]] | None = None
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class Training:
    """A training that the command line can run.

    `build(seed, data)` makes the model (initialised from `seed`) and loads the data; `data` is the folder
    named by `--data`, or None. `defaults` are the fields of `RunConfig` that suit this problem. `parameters` are those
    of its own, and `own` is the file that it stands in, for one that a person's own file defines.
    """

    name: str
    question: str
    build: Callable[[int, Path | None], Problem]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    own: OwnCode | None = None


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
