"""How long until a training is as good as the serial one? With several workers, where a gradient is a wait."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from hogwild import Run
from hogwild.experiment import Claim, Table

from ._delays import Task, train_task

WAIT = 0.01  # seconds that each gradient waits, for an environment or a device
CREWS = (1, 2, 4, 8)
CLOSE = 0.005  # of the accuracy that serial training ends with
LONGER = 3  # times the updates of serial training, after which it has not come there
_EVERY = 24  # updates between evaluations


@dataclass(frozen=True)
class Waiting:
    """The loss of a task, whose gradient waits first."""

    task: Task

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """That of a batch."""
        time.sleep(WAIT)
        loss: Tensor = self.task.loss(model, batch)
        return loss


@dataclass(frozen=True)
class Race:
    """One task at one rate: serially, and compensated by several workers at τ = workers − 1; nothing is trained twice.

    Attributes:
        runs: by workers and seed, where it was trained.
    """

    task: Task
    rate: float
    seeds: tuple[int, ...]
    runs: dict[tuple[int, int], Run] = field(default_factory=dict)

    def arrivals(self, workers: int, unit: str) -> list[float]:
        """When each seed first came close to the accuracy that serial training ends with, in "seconds" or by "update";
        infinite where it did not."""
        return [self._arrival(workers, seed, unit) for seed in self.seeds]

    def _arrival(self, workers: int, seed: int, unit: str) -> float:
        goal = self._run(1, seed).metrics[self.task.metric] - CLOSE
        evaluations = self._run(workers, seed).evaluations
        return next((row[unit] for row in evaluations if row[self.task.metric] >= goal), math.inf)

    def _run(self, workers: int, seed: int) -> Run:
        if (workers, seed) not in self.runs:
            epochs = self.task.lengths["epochs"] * (1 if workers == 1 else LONGER)
            lengths = {**self.task.lengths, "epochs": epochs, "evaluate_every": _EVERY}
            task = replace(self.task, loss=Waiting(self.task), lengths=lengths)
            self.runs[workers, seed] = train_task(task, self.rate, workers - 1, "auto", seed, workers)
        return self.runs[workers, seed]


def arrives_sooner(race: Race) -> Claim:
    """With more workers a training is as good as the serial one, and sooner."""
    seconds = {workers: statistics.median(race.arrivals(workers, "seconds")) for workers in CREWS}
    updates = {workers: statistics.median(race.arrivals(workers, "update")) for workers in CREWS}
    return Claim(
        f"a gradient that waits {WAIT * 1000:g} ms, compensated: 2, 4 and 8 workers come within half a point of what "
        f"serial training ends with, 8 of them in at most half the time",
        "; ".join(f"{workers}: {seconds[workers]:.2g} s, {updates[workers]:.0f} updates" for workers in CREWS),
        math.isfinite(max(seconds.values())) and 2 * seconds[8] <= seconds[1],
    )


def table_of_arrivals(race: Race) -> Table:
    """Medians, the fastest and the slowest seed."""
    rows = [
        (f"{workers}, τ = {workers - 1}", *(_range(race.arrivals(workers, unit)) for unit in ("seconds", "update")))
        for workers in CREWS
    ]
    return Table((f"{race.task} {race.rate:g}, workers", "seconds", "updates"), tuple(rows))


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}–{max(values):.3g}]"
