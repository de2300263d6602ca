"""Watches the workers of a run from its first claim to its last commit, and decides what a failure means.

    start all → hear events, show versions to the evaluation → all ended and every ticket done → return
                  │ a worker died: bury it, replace it or go on without it
                  └ a worker raised: stop the others, raise its error

The first failure is the one that is raised. Whatever happens, no worker runs when `supervise` is left.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hogwild.control import NOBODY, Control, Field, Word
from hogwild.errors import HogwildError, WorkerError
from hogwild.rules import Rule
from hogwild.state import SharedState
from hogwild.workers.events import Died, Event, Failed, Finished, Logged, Team

_POLL = 0.02  # seconds; how soon the parent sees a version that waits to be evaluated
_GRACE = 1.5  # seconds that workers have to finish their update once they are told to stop


@dataclass(frozen=True)
class Policy:
    """What to do when a worker dies: "replace" (at most `max_restarts` times), "continue" or "raise".

    A worker that does nothing with its ticket for `timeout` seconds, and does not wait for others, hangs.
    """

    on_worker_failure: str
    max_restarts: int
    timeout: float | None = None


@dataclass
class Outcome:
    """What the supervisor saw."""

    finished: dict[int, Finished] = field(default_factory=dict)
    logged: list[Logged] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    in_doubt: list[int] = field(default_factory=list)
    restarts: int = 0


class Supervisor:
    """Supervises a team.

    Args:
        team: the workers.
        state: the parent's view of the shared state.
        rule: the run's rule.
        policy: what to do about deaths.
        look: called with every poll; shows waiting versions to the evaluation and reports progress.
    """

    def __init__(self, team: Team, state: SharedState, rule: Rule, policy: Policy, look: Callable[[], None]) -> None:
        self.outcome = Outcome()
        self._team = team
        self._state = state
        self._control: Control = state.control
        self._rule = rule
        self._policy = policy
        self._look = look
        self._hung: dict[int, str] = {}
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}

    def supervise(self) -> None:
        """Run the team to the end.

        Raises:
            WorkerError: a worker raised, or died and was not to be replaced.
            HogwildError: a worker raised one; it is raised as it is.
        """
        try:
            for index in range(self._control.workers):
                self._team.start(index)
            while True:
                ended = not self._team.running()  # before the poll, which then hears all that they told
                self._poll()
                if ended and not self._unfinished():
                    return
                if ended:
                    self._replace(self._some_dead_worker())
        except BaseException:
            self._stop_all()
            raise
        finally:
            self._team.close()

    def _poll(self) -> None:
        for event in self._team.events(_POLL):
            self._handle(event)
        if self._policy.timeout is not None:
            self._end_what_hangs(self._policy.timeout)
        self._look()

    def _handle(self, event: Event) -> None:
        match event:
            case Logged():
                self.outcome.logged.append(event)
            case Finished():
                self.outcome.finished[event.worker] = event
            case Failed():
                raise _as_error(event)
            case Died():
                self._bury(event)

    def _bury(self, death: Died) -> None:
        """The operating system has confirmed the death: settle what the worker owned, then apply the policy."""
        doubt = self._control.bury(death.worker, partial(self._rule.settle, self._state))
        what = self._hung.pop(death.worker, f"worker {death.worker} died of {_cause(death.exit_code)}")
        if doubt is not None:
            self.outcome.in_doubt.append(doubt)
            what += f"; update {doubt} may have been applied in part"
        self.outcome.failures.append(what)
        if self._policy.on_worker_failure == "raise":
            raise WorkerError(what)
        if self._policy.on_worker_failure == "replace" and not self._control[Word.STOP]:
            self._replace(death.worker)

    def _end_what_hangs(self, timeout: float) -> None:
        """End each worker that has been at the same point of the same ticket for too long.

        Raises:
            WorkerError: it is a thread, which cannot be ended.
        """
        now = time.monotonic()
        for index in self._team.running() - self._hung.keys():
            row = self._control.row(index)
            point = row[Field.TICKET], row[Field.COMPUTED]
            if point[0] == NOBODY or row[Field.WAITING] or self._seen.get(index, (None,))[0] != point:
                self._seen[index] = point, now
            elif now - self._seen[index][1] > timeout:
                stacks = self._team.stacks(index).rstrip()
                self._hung[index] = f"worker {index} hung for {timeout:g} s at update {point[0]}\n\n{stacks}"
                if not self._team.end(index):
                    raise WorkerError(self._hung[index])

    def _replace(self, index: int) -> None:
        if self.outcome.restarts >= self._policy.max_restarts:
            raise WorkerError(
                f"{self.outcome.failures[-1] if self.outcome.failures else 'all workers ended early'}; "
                f"{self.outcome.restarts} workers were replaced already, and max_restarts is "
                f"{self._policy.max_restarts}"
            )
        self.outcome.restarts += 1
        self._team.start(index)

    def _unfinished(self) -> bool:
        """True when tickets are left that no living worker will take, or a version that nobody is left to make."""
        control = self._control
        if control.waiting_tickets():
            return True
        if control[Word.STOP]:
            return False
        version, _ = self._rule.newest(self._state)
        last = -(-control[Word.TOTAL] // self._rule.tickets_per_update)
        return control[Word.NEXT] < control[Word.TOTAL] or (self._rule.replayable and version < last)

    def _some_dead_worker(self) -> int:
        return min(set(range(self._control.workers)) - self._team.running())

    def _stop_all(self) -> None:
        """Let workers finish what they are at, briefly, then end them. Other failures among them are not raised."""
        control = self._control
        control[Word.STOP] = 1
        control[Word.EVALUATED] = control[Word.OBSERVED]
        deadline = time.monotonic() + _GRACE
        while self._team.running() and time.monotonic() < deadline:
            for event in self._team.events(_POLL):
                if isinstance(event, Finished):
                    self.outcome.finished[event.worker] = event
                elif isinstance(event, Died | Failed):
                    control[Word.ABORT] = 1
            if control[Word.OBSERVED] != control[Word.EVALUATED]:
                control.publish(Word.EVALUATED, control[Word.OBSERVED])
        control[Word.ABORT] = 1
        self._team.kill()


def _as_error(failed: Failed) -> HogwildError:
    where = f"at update {failed.update}" if failed.update >= 0 else "before its first update"
    if isinstance(failed.error, HogwildError) and not isinstance(failed.error, WorkerError):
        return failed.error
    return WorkerError(f"worker {failed.worker} raised {failed.name} {where}\n\n{failed.traceback.rstrip()}")


def _cause(exit_code: int) -> str:
    if exit_code < 0:
        try:
            return signal.Signals(-exit_code).name
        except ValueError:
            return f"signal {-exit_code}"
    return f"exit code {exit_code}"
