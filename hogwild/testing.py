"""For test suites: assert that a training is deterministic; plant delays and faults at the hooks of the protocol.

For instance:

    assert_deterministic(lambda: my_training(seed=0), runs=3)
    assert_divergence_below(my_training, limit=1e-3)
    with planted(RandomDelays(seed=1)):
        run = hogwild.train(...)
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from torch import nn

from hogwild._moved import names_from
from hogwild.data.seeding import mix
from hogwild.determinism.check import check
from hogwild.determinism.verdict import Verdict
from hogwild.shared.words import Hook
from hogwild.workers.seat import Pause, WorkerSeat, planted_pause

__all__ = [
    "Fault",
    "Hook",
    "PlantedFault",
    "RandomDelays",
    "assert_deterministic",
    "assert_divergence_below",
    "both",
    "planted",
]

__getattr__ = names_from("hogwild.testing", ("testing",), {"Seam": "Hook"})


def assert_deterministic(
    train: Callable[[], Any] | nn.Module, *data_and_loss: Any, runs: int = 3, **arguments: Any
) -> Verdict:
    """Assert that a training ends in the same bits every time.

    Args:
        train: a function that trains and returns a `Run`, a module or a state dict, made anew at each call; or a model,
            followed by the other arguments of `hogwild.train`.
        data_and_loss: as in `hogwild.check`.
        runs: how often to train, at least twice.
        arguments: as in `hogwild.check`; `fresh_process=True` is one of them.

    Raises:
        AssertionError: two runs differ; the message is the verdict.
        ArgumentError, WorkerError: a run could not be made; nothing is asserted then.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    verdict = check(train, *data_and_loss, runs=runs, **{"controls": False, **arguments})
    if not verdict.identical:
        raise AssertionError(f"the training is not deterministic\n\n{verdict}")
    return verdict


def assert_divergence_below(
    train: Callable[[], Any] | nn.Module,
    *data_and_loss: Any,
    limit: float,
    measure: str = "relative_l2",
    runs: int = 3,
    **arguments: Any,
) -> Verdict:
    """Assert that no two runs of a training are further apart than `limit`.

    Args:
        train: as in `assert_deterministic`.
        data_and_loss: as in `hogwild.check`.
        limit: on `measure`.
        measure: relative_l2, max_abs or max_ulp, as `hogwild.distance` defines them.
        runs: how often to train, at least twice.
        arguments: as in `hogwild.check`.

    Raises:
        AssertionError: two runs are further apart; the message is the verdict.
        ArgumentError, WorkerError: a run could not be made; nothing is asserted then.
    """
    __tracebackhide__ = True
    settings = {"controls": False, **arguments, "tolerance": limit, "measure": measure}
    verdict = check(train, *data_and_loss, runs=runs, **settings)
    if not verdict.passed:
        raise AssertionError(f"runs are further apart than {measure} {limit:g}\n\n{verdict}")
    return verdict


@contextmanager
def planted(pause: Pause) -> Iterator[None]:
    """Runs started inside carry `pause` to their workers, where it is called at every hook."""
    token = planted_pause.set(pause)
    try:
        yield
    finally:
        planted_pause.reset(token)


class Fault(Enum):
    """What may befall a worker."""

    KILL = signal.SIGKILL
    TERMINATE = signal.SIGTERM
    SEGFAULT = signal.SIGSEGV
    EXIT = "os._exit(0)"
    RAISE = "an exception"
    HANG = "an hour's sleep"


_OF_NO_TICKET = (Hook.CLAIMING, Hook.COMPARING, Hook.STEPPING, Hook.PUBLISHING, Hook.PUBLISHED)


class PlantedError(RuntimeError):
    """What `Fault.RAISE` raises."""


def _mark() -> Path:
    return Path(tempfile.gettempdir()) / f"hogwild-fault-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class PlantedFault:
    """A fault that befalls, once, the worker that is at `hook` with ticket `update`.

    At the hooks at which a worker has no ticket, or may act for others, it befalls the first one that comes there once
    that ticket has been handed out. Of several that come there at once, it befalls the one that makes an empty file,
    which goes with the fault.
    """

    fault: Fault
    hook: Hook
    update: int
    _mark: Path = field(default_factory=_mark, repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, self._mark.unlink, missing_ok=True)

    @property
    def fired(self) -> bool:
        """True once it has befallen somebody."""
        return self._mark.exists()

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:
        """Called at every hook."""
        if hook is not self.hook or not self._meets(seat):
            return
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return
        if self.fault is Fault.EXIT:
            os._exit(0)
        if self.fault is Fault.RAISE:
            raise PlantedError(f"planted at {hook}")
        if self.fault is Fault.HANG:
            time.sleep(3600)
        os.kill(os.getpid(), self.fault.value)
        time.sleep(60)  # a signal may take a moment to be delivered

    def _meets(self, seat: WorkerSeat) -> bool:
        if self.hook in _OF_NO_TICKET:
            return seat.tickets_handed_out > self.update
        return seat.ticket == self.update


class RandomDelays:
    """Delays of up to `longest` seconds at a share of all hooks, drawn from a generator seeded by (seed, worker)."""

    def __init__(self, seed: int, share: float = 0.1, longest: float = 0.002) -> None:
        self.seed = seed
        self.share = share
        self.longest = longest
        self._generators: dict[int, random.Random] = {}

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:  # noqa: ARG002
        """Called at every hook."""
        generator = self._generators.setdefault(seat.index, random.Random(mix(self.seed, seat.index)))
        if generator.random() < self.share:
            time.sleep(self.longest * generator.random())


def both(first: Pause, second: Pause) -> Pause:
    """Plant one after the other."""

    def pause(hook: Hook, seat: WorkerSeat) -> None:
        first(hook, seat)
        second(hook, seat)

    return pause
