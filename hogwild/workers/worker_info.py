"""What code inside a worker may know of it: `hogwild.worker_info()`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hogwild.data.seeding import mix
from hogwild.errors import ArgumentError

OF_A_ROW = ("update", "batch", "worker")
"""How a row of what a worker logged begins, whose names no metric may have."""

Log = Callable[[int, int, dict[str, float]], None]
"""Called with update, batch and named numbers."""


def log_to_no_run(update: int, batch: int, metrics: dict[str, float]) -> None:
    """What is logged before a run belongs to none."""


def as_number(told: Any) -> float:
    """What code tells as a number, if need be a tensor with a graph, of which torch would warn.

    Raises:
        TypeError, ValueError, RuntimeError: it is none.
    """
    return float(told.detach() if isinstance(told, torch.Tensor) else told)


class WorkerInfo:
    """What code inside a worker may know about it, as `torch.utils.data.get_worker_info` does for loaders.

    Attributes:
        index: number of the worker, from 0.
        workers: how many there are.
        update: number of the update being computed; −1 before the first, as in what is logged there.
        batch: number of the batch it is computed on: that of the update, unless updates are made of several (`sync`,
            accumulate); −1 before the first.
        seed: of the run.
        generator: a `torch.Generator` seeded by (seed, batch). Until it is first asked for nobody can draw from it,
            and it is not seeded; from then on it is at every batch, for it may be kept.
        holds: what is logged is held until it is certain that the batch is not computed again.
        held: what is.
        muted: what is logged is dropped, for the batch is computed a second time.
    """

    def __init__(self, index: int, workers: int, seed: int, log: Log) -> None:
        self.index = index
        self.workers = workers
        self.update = -1
        self.batch = -1
        self.seed = seed
        self._generator = torch.Generator()
        self._known = False  # somebody may hold the generator
        self._number = 0
        self._log = log
        self.holds = False
        self.held: list[tuple[int, dict[str, float]]] = []
        self.muted = False

    @property
    def generator(self) -> torch.Generator:
        """A generator seeded by (seed, batch)."""
        if not self._known:
            self._known = True
            self._generator.manual_seed(self._number)
        return self._generator

    def log(self, **metrics: float | torch.Tensor) -> None:
        """Record named numbers for this batch; they appear in `run.logged`. Where a worker dies before its update
        counts, the batch is computed again, and so is what was logged of it; until the run ends, a callback and
        metrics.jsonl have both.

        Raises:
            ArgumentError: a name is `update`, `batch` or `worker`, which every row has.
        """
        if taken := [name for name in OF_A_ROW if name in metrics]:
            raise ArgumentError(f"log was given {taken[0]!r}, which every row has; give it another name")
        numbers = {name: as_number(value) for name, value in metrics.items()}
        if self.muted:
            return
        if self.holds:
            self.held.append((self.batch, numbers))
        else:
            self._log(self.update, self.batch, numbers)

    def pass_on(self, *, drop: bool) -> None:
        """Pass on what was held, or drop it."""
        held, self.held = self.held, []
        for batch, numbers in () if drop else held:
            self._log(self.update, batch, numbers)

    def start(self, update: int, batch: int) -> int:
        """Begin a batch of that update; returns the number that its generators are seeded by."""
        self.update = update
        self.batch = batch
        self._number = mix(self.seed, batch)
        if self._known:
            self._generator.manual_seed(self._number)
        return self._number


_local = threading.local()


def worker_info() -> WorkerInfo | None:
    """Inside a worker, what it may know of itself; outside, None."""
    return getattr(_local, "info", None)


@contextmanager
def informed(info: WorkerInfo) -> Iterator[None]:
    """Inside, this thread is that worker; afterwards it is again whoever it was."""
    before = worker_info()
    _local.info = info
    try:
        yield
    finally:
        _local.info = before
