"""Why a worker ended before its work was done, as data and in words. The supervisor decides what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hogwild.errors import WorkerError, some_of
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

    @property
    def how(self) -> str:
        """The line without the worker, the update and the batch; equal for failures of the same kind."""
        told = self.what.removeprefix(f"worker {self.worker} ")
        return told.replace(f" at update {self.update} (batch {self.batch})", "", 1)

    def as_error(self, afterwards: str = "") -> WorkerError:
        """The error that the caller gets; `afterwards` says what was done about the failure."""
        text = "\n\n".join(part for part in (self.what, afterwards, self.details) if part)
        error = WorkerError(text, worker=self.worker, update=self.update, batch=self.batch)
        error.__cause__ = self.error.with_traceback(None) if self.error is not None else None  # its frames hold tensors
        return error


def told_after_the_first(failures: Sequence[Failure]) -> str:
    """How the message of the first failure goes on about the later ones: they were the same, or a line for each."""
    later = failures[1:]
    if not later:
        return ""
    if len({failure.how for failure in failures}) == 1:
        batches = sorted({failure.batch for failure in failures if failure.batch is not None})
        where = f", at batch{'es' if len(batches) > 1 else ''} {some_of([*map(str, batches)])}" if batches else ""
        return f"; it was the same all {len(failures)} times{where}"
    told = Counter(failure.what for failure in later)
    lines = [f"  {what}{f' ({number} times)' if number > 1 else ''}" for what, number in told.items()]
    return "\n".join(["; then", *lines])


@dataclass
class WorkerHistory:
    """What became of the workers of a run: the supervisor's notes.

    `logged` is all that was logged, in the order in which it came, and `undone` are the places there of what was logged
    of batches that were then computed again.
    """

    finished: dict[int, Finished] = field(default_factory=dict)
    logged: list[Logged] = field(default_factory=list)
    undone: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    in_doubt: list[int] = field(default_factory=list)
    restarts: int = 0

    def note(self, event: Logged) -> None:
        """Take in what was logged. The same event may come twice, where an interruption came in between."""
        if not self.logged or self.logged[-1] is not event:
            self.logged.append(event)

    def logged_once(self) -> list[Logged]:
        """What was logged of batches that count."""
        return [one for place, one in enumerate(self.logged) if place not in self.undone]

    def undo(self, failure: Failure, batches: int) -> None:
        """The update at which that worker failed is computed again, and so are its `batches` batches: what was logged
        of them no longer counts."""
        at = failure.worker, failure.update
        own = range(failure.batch, failure.batch + batches) if failure.batch is not None else ()
        self.undone |= {
            place for place, one in enumerate(self.logged) if (one.worker, one.update) == at and one.batch in own
        }
