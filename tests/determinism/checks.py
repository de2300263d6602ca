"""Small trainings to be checked: one that flips a bit, some that race, some that nobody can repeat."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import problems
import torch
from torch import nn

import hogwild
from hogwild.rules import Rule
from hogwild.rules.ordered import Ordered
from hogwild.shared.words import Hook
from hogwild.testing import RandomDelays, both, planted
from hogwild.workers.seat import WorkerSeat


def check(model: nn.Module | None = None, **arguments: Any) -> hogwild.Verdict:
    """Check a small training; any argument of `hogwild.check` may be given."""
    settings: dict[str, Any] = {"optimizer": problems.SGD, "batch_size": 16, "kind": "threads", "runs": 2}
    settings |= arguments
    settings.setdefault("updates", 40)
    loss = settings.pop("loss", problems.cross_entropy)
    return hogwild.check(problems.mlp() if model is None else model, problems.data(), loss, **settings)


class EverySecondRun(Rule):
    """A rule that may do something else, where `flips` is true, in every second run."""

    begun: ClassVar[int] = 0
    flips = False

    def begin(self, control, version):
        super().begin(control, version)
        type(self).begun += 1
        self.flips = type(self).begun % 2 == 0


class FlipsOneBit(EverySecondRun, Ordered):
    """In every second run: one more in a bit of one weight of the version that update `at` makes. The lowest bit may be
    rounded away by the updates after it, on some processors."""

    name: ClassVar[str] = "flips"

    def __init__(self, at: int, position: int, element: int, bit: int = 0) -> None:
        super().__init__(1, "none")
        self.at, self.position, self.element, self.bit = at, position, element, bit

    def write_version(self, update, version, source, target, gathered):
        super().write_version(update, version, source, target, gathered)
        if self.flips and update == self.at:
            self.state.slots[target].parameters[self.position].view(torch.int32).view(-1)[self.element] += 1 << self.bit


def nobody_alone(hook: Hook, seat: WorkerSeat) -> None:
    """The first updates wait until every worker has begun: on a busy machine one may else make 20 before the next."""
    deadline = time.monotonic() + 60
    while hook is Hook.COMPUTING and seat.tickets_handed_out < seat.control.workers:
        assert time.monotonic() < deadline, "a worker never came"
        time.sleep(1e-4)


def racing(**arguments: Any) -> hogwild.Verdict:
    """A check of a run that surely diverges: its workers work at the same time, with delays that nobody can repeat."""
    delays = RandomDelays(seed=int.from_bytes(os.urandom(4)), share=0.5)
    with planted(both(nobody_alone, delays)):
        return check(**{"update": "hogwild", "updates": 60, **arguments})


class Fickle(nn.Module):
    """Its output depends on a number that nobody seeded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = problems.mlp()

    def forward(self, x):
        return self.inner(x) * (1 + 1e-3 * int.from_bytes(os.urandom(1)))


def seeded(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 2)
