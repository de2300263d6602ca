"""Delays and faults to plant at the hooks of the protocol.

Apart from `hogwild.testing`, which has the names, so that a worker process that is given one imports nothing else: that
took 0.2 s.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hogwild.data.seeding import mix
from hogwild.shared.words import Hook
from hogwild.workers.seat import Pause, WorkerSeat, planted_pause


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

    def assert_fired(self) -> None:
        """Fail where it has befallen nobody, as where it is planted beyond the end of the run: then nothing was tried.

        Raises:
            AssertionError: it has not.
        """
        if not self.fired:
            raise AssertionError(
                f"Fault.{self.fault.name} befell nobody: no worker came to Hook.{self.hook.name} with update "
                f"{self.update}; plant it at an update that the run makes, and at a hook that its rule and kind pass"
            )

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


def both(*pauses: Pause) -> Pause:
    """Plant two or more, one after the other."""

    def pause(hook: Hook, seat: WorkerSeat) -> None:
        for one in pauses:
            one(hook, seat)

    return pause
