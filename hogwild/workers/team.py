"""A team of workers, of either kind, as the parent sees it: what it may ask of them, and what it hears."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import psutil

from hogwild.errors import printable, traceback_of
from hogwild.workers.task import Task
from hogwild.workers.worker import Worker


@dataclass(frozen=True)
class Logged:
    """A worker called `worker_info().log(...)`."""

    worker: int
    update: int
    batch: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Finished:
    """A worker found no more tickets. `cpu_seconds` is its own; `rss` and `pss` are of its process, in bytes."""

    worker: int
    cpu_seconds: float
    rss: int
    pss: int | None


@dataclass(frozen=True)
class Failed:
    """A worker raised: what, its type's name, its message on one line, its own traceback. Its `Died` follows.

    `error` is another one where what was raised cannot be pickled. `made` is false where the worker itself could not be
    made, so that it never came to the work.
    """

    worker: int
    error: BaseException
    name: str
    message: str
    traceback: str
    made: bool


@dataclass(frozen=True)
class Died:
    """A worker ended before it had `Finished`, and nothing of it runs any more.

    `exit_code` is its process's, negative for a signal; 0 for a thread, which can only have raised. `with_server`: it
    ended because the fork server did, which starts the processes.
    """

    worker: int
    exit_code: int
    with_server: bool = False


Event = Logged | Finished | Failed | Died


def taken(told: deque[Event]) -> Iterator[Event]:
    """What was told, in order. What was logged is let go of only when the next is asked for, so an interruption before
    it was taken in loses nothing; where it was, it comes once more."""
    while told:
        event = told[0]
        if isinstance(event, Logged):
            yield event
            told.popleft()
        else:
            yield told.popleft()


class Team(Protocol):
    """The workers of a run, of one kind. `own_processes`: each has a process to itself, with generators of its own."""

    task: Task
    own_processes: ClassVar[bool]

    def start(self, index: int) -> None:
        """Start worker `index`, for the first time or again after its end."""
        ...

    def running(self) -> set[int]:
        """Workers that have been started, and whose `Finished` or `Died` has not been told."""
        ...

    def events(self, timeout: float) -> Iterable[Event]:
        """What has come since the last call, waiting up to `timeout` seconds for the first."""
        ...

    def stacks(self, index: int) -> str:
        """The stack of every thread of a worker that hangs, as text."""
        ...

    def end(self, index: int) -> bool:
        """End one worker at once; its `Died` follows. False where that is not possible."""
        ...

    def kill(self) -> None:
        """End every worker that still runs, at once where that is possible."""
        ...

    def close(self) -> None:
        """Give back what the team holds; no worker runs any more."""
        ...


def failure(worker: Worker | None, index: int, error: BaseException) -> Failed:
    """The event that tells of an exception that ends a worker."""
    try:
        message = printable(str(error))
    except Exception:
        message = ""
    return Failed(index, error, type(error).__name__, message, traceback_of(error), made=worker is not None)


def usage(index: int, *, owns_process: bool) -> Finished:
    """The event that tells of a worker's end, measured now by the worker itself."""
    memory = psutil.Process().memory_full_info() if owns_process and sys.platform == "linux" else None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes that the system counts by
    rss = memory.rss if memory else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    seconds = time.process_time() if owns_process else time.thread_time()
    return Finished(index, seconds, rss, memory.pss if memory else None)
