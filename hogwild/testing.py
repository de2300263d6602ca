"""For test suites: plant delays and faults at the seams of the protocol.

with planted(RandomDelays(seed=1)):
    run = hogwild.train(...)
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import torch

from hogwild.control import Seam
from hogwild.seeding import mix
from hogwild.workers.loop import Pause, Worker
from hogwild.workers.loop import planted as _planted

__all__ = ["Fault", "PlantedFault", "RandomDelays", "Seam", "both", "planted"]


@contextmanager
def planted(pause: Pause) -> Iterator[None]:
    """Runs started inside carry `pause` to their workers, where it is called at every seam."""
    token = _planted.set(pause)
    try:
        yield
    finally:
        _planted.reset(token)


class Fault(Enum):
    """What may befall a worker."""

    KILL = signal.SIGKILL
    TERMINATE = signal.SIGTERM
    SEGFAULT = signal.SIGSEGV
    EXIT = "os._exit(0)"
    RAISE = "an exception"


class PlantedError(RuntimeError):
    """What `Fault.RAISE` raises."""


def _unfired() -> torch.Tensor:
    shared: torch.Tensor = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    return shared


@dataclass(frozen=True)
class PlantedFault:
    """A fault that befalls, once, the worker that is at `seam` with ticket `update`.

    At the seams at which a worker has no ticket, or may act for others, it befalls the first one that comes there once
    that ticket has been handed out.
    """

    fault: Fault
    seam: Seam
    update: int
    _fired: torch.Tensor = field(default_factory=_unfired, repr=False)

    @property
    def fired(self) -> bool:
        """True once it has befallen somebody."""
        return bool(self._fired.item())

    def __call__(self, seam: Seam, worker: Worker) -> None:
        """Called at every seam."""
        if seam is not self.seam or self.fired or not self._meets(worker):
            return
        self._fired.fill_(1)
        if self.fault is Fault.EXIT:
            os._exit(0)
        if self.fault is Fault.RAISE:
            raise PlantedError(f"planted at {seam}")
        os.kill(os.getpid(), self.fault.value)
        time.sleep(60)  # a signal may take a moment to be delivered

    def _meets(self, worker: Worker) -> bool:
        if self.seam in (Seam.CLAIMING, Seam.PUBLISHING, Seam.PUBLISHED):
            return worker.tickets_handed_out > self.update
        return worker.ticket == self.update


class RandomDelays:
    """Delays of up to `longest` seconds at a share of all seams, drawn from a generator seeded by (seed, worker)."""

    def __init__(self, seed: int, share: float = 0.1, longest: float = 0.002) -> None:
        self.seed = seed
        self.share = share
        self.longest = longest
        self._generators: dict[int, random.Random] = {}

    def __call__(self, seam: Seam, worker: Worker) -> None:  # noqa: ARG002
        """Called at every seam."""
        generator = self._generators.setdefault(worker.index, random.Random(mix(self.seed, worker.index)))
        if generator.random() < self.share:
            time.sleep(self.longest * generator.random())


def both(first: Pause, second: Pause) -> Pause:
    """Plant one after the other."""

    def pause(seam: Seam, worker: Worker) -> None:
        first(seam, worker)
        second(seam, worker)

    return pause
