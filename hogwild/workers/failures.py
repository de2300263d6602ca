"""How the end of a worker before its time is told: as data, and in words. The supervisor decides what follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from hogwild.errors import WorkerError
from hogwild.workers.team import Finished, Logged


@dataclass(frozen=True)
class Failure:
    """Why a worker ended before its time.

    `what` is one line, `details` its traceback or stacks; `update` and `batch` are None where it was between updates.
    """

    worker: int
    update: int | None
    batch: int | None
    what: str
    details: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.what}\n\n{self.details}" if self.details else self.what

    def as_error(self, afterwards: str = "") -> WorkerError:
        """What the caller is to be told; `afterwards` is what became of it."""
        text = "\n\n".join(part for part in (self.what, afterwards, self.details) if part)
        error = WorkerError(text, worker=self.worker, update=self.update, batch=self.batch)
        error.__cause__ = self.error.with_traceback(None) if self.error is not None else None  # its frames hold tensors
        return error


@dataclass
class WorkerHistory:
    """What became of the workers of a run: the supervisor's notes."""

    finished: dict[int, Finished] = field(default_factory=dict)
    logged: list[Logged] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    in_doubt: list[int] = field(default_factory=list)
    restarts: int = 0
