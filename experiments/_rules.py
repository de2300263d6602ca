"""What the `rules` study measures: one training under every rule, kind and number of workers, beside a plain loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from statistics import median
from typing import Any

import torch
from torch import nn

import hogwild
from hogwild.config import KINDS
from hogwild.determinism.check import own_training
from hogwild.determinism.controls import Controls, measure_controls
from hogwild.reference import train_serially
from hogwild.rules.registry import LEAST_OVERHEAD, NAMES, rule_class
from hogwild.run.audit import Audit
from hogwild.shared.limits import usable_cores

from .digits import Batch, Held, build, loss, split

WORKERS = (1, 2, 4)
BATCH_SIZE, LR = 16, 0.1
_NEVER = 1 << 40


@dataclass(frozen=True)
class Setting:
    """A rule, and who trains."""

    rule: str
    kind: str
    workers: int

    @property
    def alone(self) -> bool:
        """True for one worker."""
        return self.workers == 1


@dataclass
class Cell:
    """What was measured of a setting: for each run its digest, state, accuracy and mean staleness; `speeds` relative to
    the plain loop of the same repeat, of the runs without an audit; the audit of the one with it."""

    setting: Setting
    digests: list[str] = field(default_factory=list)
    states: list[dict[str, torch.Tensor]] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    oldest: int = 0
    speeds: list[float] = field(default_factory=list)
    audit: Audit | None = None

    def add(self, run: hogwild.Run) -> None:
        """Take in a run."""
        self.digests.append(run.digest)
        self.states.append(dict(run.state))
        self.accuracies.append(run.metrics["accuracy"])
        self.ages.append(run.staleness.mean)
        self.oldest = max(self.oldest, run.staleness.max)
        if run.audit is not None:
            self.audit = run.audit

    @cached_property
    def apart(self) -> float:
        """Relative L2 between the two runs that are furthest apart."""
        return max(hogwild.distance(a, b).relative_l2 for a, b in combinations(self.states, 2))

    @property
    def speed(self) -> float:
        """The median speed, relative to the plain loop."""
        return median(self.speeds)


@dataclass
class Field:
    """All measurements.

    Args:
        epochs: passes over the 1,500 training images.
        repeats: runs of each setting that are timed; one more is audited.
        seed: of the network, the shuffles and the draws.
    """

    epochs: int
    repeats: int
    seed: int
    settings: Sequence[Setting] = tuple(Setting(r, k, w) for r in NAMES for k in KINDS for w in WORKERS)
    cells: dict[Setting, Cell] = field(default_factory=dict)
    serial_speeds: list[float] = field(default_factory=list)
    serial_digest: str = ""
    serial_accuracy: float = 0.0
    cores: float = field(default_factory=usable_cores)

    def measure(self) -> None:
        """Every setting in turn, `repeats` times over, with the plain loop first in each repeat."""
        train, held = split()
        self.network, self.data, self.judge = build(self.seed, None).model, train, Held(held)
        self.cells = {setting: Cell(setting) for setting in self.settings}
        self._train_serially()
        self._time_plain_loop()  # the first of a program is slow
        for _ in range(self.repeats):
            serial = self._time_plain_loop()
            self.serial_speeds.append(serial)
            for setting, cell in self.cells.items():
                run = self.train(setting)
                cell.add(run)
                cell.speeds.append(run.samples_per_second / serial)
        for setting, cell in self.cells.items():
            cell.add(self.train(setting, audit=True))

    def train(self, setting: Setting, *, audit: bool = False) -> hogwild.Run:
        """One run."""
        with _without_advice():
            return hogwild.train(
                deepcopy(self.network), self.data, loss, audit=audit, evaluate=self.judge, evaluate_every=_NEVER,
                **self._arguments(setting),
            )  # fmt: skip

    def controls(self) -> Controls:
        """Of serial training: the same again, one ULP more in one weight, another seed."""
        arguments = self._arguments(Setting(LEAST_OVERHEAD, "processes", 1))
        own = own_training(deepcopy(self.network), self.data, loss, **arguments)
        return measure_controls(
            own, own.repeat(), frozenset(), other_seed=self.seed + 1, other_workers=None, tell=_nobody
        )[0]

    def _arguments(self, setting: Setting) -> dict[str, Any]:
        make = rule_class(setting.rule)
        options = make.options_for(max(WORKERS))  # one result for every number of workers
        lr = LR * make(**options).tickets_per_update  # larger batches, fewer updates
        return {
            "optimizer": partial(torch.optim.SGD, lr=lr),
            "update": setting.rule,
            **options,
            "compensation": "none",
            "kind": setting.kind,
            "workers": setting.workers,
            "epochs": self.epochs,
            "batch_size": BATCH_SIZE,
            "seed": self.seed,
        }

    def _train_serially(self) -> None:
        """What the run of every rule with one worker should come to, by the reference."""
        model, sgd = deepcopy(self.network), partial(torch.optim.SGD, lr=LR)
        settings: dict[str, Any] = {"epochs": self.epochs, "batch_size": BATCH_SIZE, "seed": self.seed}
        train_serially(model, self.data, loss, optimizer=sgd, **settings)
        self.serial_digest = hogwild.digest(model)
        self.serial_accuracy = self.judge(model)["accuracy"]

    def _time_plain_loop(self) -> float:
        """Samples per second of a loop written by hand, which comes to the same without copies of the model."""
        model = deepcopy(self.network)
        began = time.perf_counter()
        samples = plain_loop(model, self.data, self.epochs, self.seed)
        seconds = time.perf_counter() - began
        assert hogwild.digest(model) == self.serial_digest, "the loop that is timed does other work"
        return samples / seconds


def plain_loop(model: nn.Module, data: Batch, epochs: int, seed: int) -> int:
    """The loop that one would write, in this process, for its speed; returns the samples trained on."""
    images, labels = data
    schedule = hogwild.Schedule(len(labels), BATCH_SIZE, True, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    samples = 0
    for update in range(epochs * len(schedule)):
        rows = schedule.indices(update)
        optimizer.zero_grad()
        loss(model, (images[rows], labels[rows])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        samples += len(rows)
    return samples


def _nobody(text: str) -> None:
    """Who listens to the controls."""


@contextmanager
def _without_advice() -> Iterator[None]:
    """More workers than cores, and much staleness, are on purpose here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def distinct(cells: Sequence[Cell]) -> set[str]:
    """The digests of all runs of some settings."""
    return {digest for cell in cells for digest in cell.digests}
