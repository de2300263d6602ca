"""Watches the workers of a run from its first claim to its last commit, and decides what a failure means.

    start all → hear events, show versions to the evaluation → all ended and every ticket done → return
                  │ a worker raised, died or hung: settle what it owned, then replace it, go on without it,
                  └ stop the others and raise

An exception of this package's own always ends the run, because another worker would find the same thing wrong. So does
the exception of a worker that could not be made. The error that is raised tells the first failure first. Whatever
happens, no worker process runs any more when `supervise` returns or raises.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hogwild.config import RunConfig
from hogwild.errors import HogwildError, WorkerError
from hogwild.rules.base import Rule
from hogwild.shared.state import SharedState
from hogwild.shared.tickets import Control, Settled
from hogwild.shared.words import FOR_A_LOCK, NOBODY, Field, Phase, Word
from hogwild.workers.failures import Failure, WorkerHistory, told_after_the_first
from hogwild.workers.team import Died, Event, Failed, Finished, Logged, Team

_SOON, _NOW_AND_THEN = 0.02, 0.1  # seconds between looks: where versions wait for them, and where none do
_STARTING = 120.0  # seconds that a worker has at least for its start, which is not the caller's step
_LOOKS = 4  # at least so many find a worker at one point before it is taken to hang
_WRITING = 0.3  # seconds more for those that are in the middle of a write
_GRACE = 1.5  # seconds that workers have to finish their update once they are told to stop
_PROGRESS = Field.TICKET, Field.COMPUTED, Field.AGAIN, Field.ENDED  # one may make versions for others all the time
_log = logging.getLogger("hogwild")


class Supervisor:
    """Supervises a team.

    Args:
        team: the workers.
        state: the parent's view of the shared state.
        rule: the run's rule.
        config: of the run; says what to do about failures.
        look: called now and then; evaluates the version that is shown, if any, and reports progress.
        shows: workers show versions and wait for `look`, so it is called every 20 ms. Elsewhere it is called every
            100 ms, because it takes time from a worker where there is no core to spare.
    """

    def __init__(
        self,
        team: Team,
        state: SharedState,
        rule: Rule,
        config: RunConfig,
        look: Callable[[], None],
        *,
        shows: bool,
    ) -> None:
        self.history = WorkerHistory()
        self._team = team
        self._state = state
        self._control: Control = state.control
        self._rule = rule
        self._config = config
        self._look = look
        self._pause = _SOON if shows else _NOW_AND_THEN
        self._ending: dict[int, Failure] = {}  # workers about to end, and why
        self._dead: deque[tuple[int, Failure]] = deque()  # workers that have ended, whose ticket is not settled
        self._raisers: set[int] = set()  # whose errors end the run
        self._seen: dict[int, tuple[tuple[int, ...] | None, float]] = {}  # where each was last seen, for how many s
        self._looked = time.monotonic()

    def supervise(self) -> None:
        """Run the team to the end.

        Raises:
            WorkerError: a worker failed and was not to be replaced, or too many did.
            HogwildError: a worker raised one; it is raised as it is.
        """
        try:
            self._rule.newest(self._state)  # which a look sees where it must not wait
            for index in range(self._control.workers):
                self._control.row(index)[Field.PRESENT] = 1  # of all, before the first one trains
            for index in range(self._control.workers):
                self._start(index)
            while True:
                # Before the poll, which then hears all that they told, and may put others in the place of the dead.
                ended = not self._dead and not self._team.running()
                self._poll(0.0 if ended else self._pause)
                if ended and not self._unfinished():
                    return
                if ended:
                    self._replace(self._some_dead_worker(), "all workers ended before the work was done")
        except BaseException:
            self._stop_all()
            raise
        finally:
            self._team.close()

    def _poll(self, timeout: float) -> None:
        for event in self._team.events(timeout):
            error = self._handle(event)
            del event  # it has the error, whose traceback will have this frame: the run's memory would outlive both
            if error is not None:
                try:
                    raise error
                finally:
                    del error
        self._settle_the_dead()
        if self._config.worker_timeout is not None:
            self._end_what_hangs(self._config.worker_timeout)
        self._look()

    def _handle(self, event: Event) -> BaseException | None:
        """Take in an event. Returns an error where the event ends the run at once, with nothing left to settle."""
        match event:
            case Logged():
                self.history.note(event)
            case Finished():
                self.history.finished[event.worker] = event
            case Failed():
                return self._raised(event)
            case Died():
                self._dead.append((event.worker, self._told(event)))
                self._settle_the_dead()
        return None

    def _raised(self, event: Failed) -> BaseException | None:
        """The error of a worker that raised, where it ends the run; else it is settled with the worker's death."""
        failure = self._failure(event.worker, f"raised {event.name}", event.message)
        failure = replace(failure, details=event.traceback, error=event.error)
        ours = isinstance(event.error, HogwildError) and not isinstance(event.error, WorkerError)
        if ours or not event.made or self._config.on_worker_failure == "raise":
            self._raisers.add(event.worker)
            return event.error if ours else failure.as_error()
        self._ending[event.worker] = failure
        return None

    def _failure(self, worker: int, what: str, message: str = "") -> Failure:
        """A failure of that worker where it is now; to be asked for before its death is settled."""
        said = f": {message}" if message else ""
        row = self._control.row(worker)
        ticket = row[Field.TICKET]
        if ticket == NOBODY:
            where = "between updates" if row[Field.STARTED] else "before its first update"
            return Failure(worker, None, None, f"worker {worker} {what} {where}{said}")
        at = self._rule.deal(ticket, self._control[Word.TOTAL])
        where = f"at update {at.update} (batch {at.batch})"
        return Failure(worker, at.update, at.batch, f"worker {worker} {what} {where}{said}")

    def _told(self, death: Died) -> Failure:
        """Why that worker ended: what it had raised, or was ended for; else what the exit code of its process says."""
        return self._ending.pop(death.worker, None) or self._failure(death.worker, f"died of {_cause(death)}")

    def _settle_the_dead(self) -> None:
        while self._dead and self._settle_death(*self._dead[0]):
            pass

    def _settle_death(self, worker: int, failure: Failure) -> bool:
        """Settle the ticket of a worker that has ended, then do what `on_worker_failure` says.

        False: not now. Another worker holds the ticket lock; if it hangs, it has to be ended first.
        """
        dealt_with = self._control.owner_died(worker, partial(self._rule.settle, self._state))
        if dealt_with is None and self._config.on_worker_failure != "raise":
            return False
        self._dead.popleft()
        if dealt_with is None:
            self._note_death(worker, failure)
            raise failure.as_error()
        ticket, settled = dealt_with
        if settled is Settled.AGAIN:
            self.history.undo(failure, self._rule.batches_per_ticket)
        elif settled is Settled.DOUBTED:
            self.history.in_doubt.append(ticket)
            failure = _doubtful(failure, ticket)
        self.history.failures.append(failure)
        if self._config.on_worker_failure == "raise":
            raise failure.as_error()
        with self._control.without_waiting():  # for a lock of somebody who hangs
            needed = not self._control[Word.STOP] and self._has_tickets()
        if self._config.on_worker_failure == "replace" and needed:
            self._replace(worker, failure.what)
        else:
            _log.warning("%s; going on without it", failure.what)
        return True

    def _end_what_hangs(self, timeout: float) -> None:
        """End the workers that have been at the same point of the same ticket for longer than `timeout`.

        Of a long time since the last look only a quarter of `timeout` counts. The worker may have been waiting for this
        look, or this program may not have run.

        Raises:
            WorkerError: it is a thread, which cannot be ended.
        """
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, timeout / _LOOKS), now
        for worker in self._team.running():
            if self._stuck(worker, passed, timeout):
                failure = self._failure(worker, f"hung for {timeout:g} s")
                self._ending[worker] = failure = replace(failure, details=self._team.stacks(worker).rstrip())
                if not self._team.end(worker):
                    raise failure.as_error()

    def _stuck(self, worker: int, passed: float, timeout: float) -> bool:
        """True when a worker has been seen at one point for too long, and not waiting for a lock."""
        if worker in self._ending or worker in self.history.finished:
            return False
        point = self._point(worker)
        before, spent = self._seen[worker]
        self._seen[worker] = point, spent + passed if point == before else 0.0
        return point is not None and self._seen[worker][1] > timeout

    def _point(self, worker: int) -> tuple[int, ...] | None:
        """Where that worker is in its work; the same point twice means that it got no further.

        Of a worker that waits it is how often it has looked for what it waits for, because a living worker looks again
        and again. None while it waits for a lock, because then it is the holder of the lock that may hang.
        """
        row = self._control.row(worker)
        waits = row[Field.WAITING]
        if waits == FOR_A_LOCK:
            return None
        return (row[Field.LOOKS],) if waits else tuple(row[field] for field in _PROGRESS)

    def _replace(self, index: int, why: str) -> None:
        failures, most = self.history.failures, self._config.max_restarts
        if self.history.restarts >= most:
            tried = f"workers replaced: {self.history.restarts}, and max_restarts is {most}"
            if not failures:
                advice = "a loop goes on until claim() gives None"
                raise WorkerError(f"all workers ended before the work was done; {advice}; {tried}")
            raise failures[0].as_error(f"{tried}{told_after_the_first(failures)}")
        self.history.restarts += 1
        _log.warning("%s; worker %d is replaced (%d of at most %d)", why, index, self.history.restarts, most)
        self._start(index)

    def _start(self, worker: int) -> None:
        self.history.finished.pop(worker, None)
        row = self._control.row(worker)
        row[Field.WAITING] = 0  # whoever had the row before may have died waiting
        row[Field.PRESENT] = 1
        self._seen[worker] = self._point(worker), -max(_STARTING - (self._config.worker_timeout or 0), 0)
        self._team.start(worker)

    def _has_tickets(self) -> bool:
        """True when there are tickets to be computed that no worker has. Once every version is made there are none,
        even where tickets are left: under `snapshot` a later ticket may have made the last version."""
        control = self._control
        if self._rule.versioned and self._rule.newest(self._state)[0] >= self._last:
            return False
        return bool(control.waiting_tickets()) or (not control[Word.STOP] and control[Word.NEXT] < control[Word.TOTAL])

    def _unfinished(self) -> bool:
        """True when tickets are left that no living worker will take, or a version that nobody is left to make."""
        control, last = self._control, self._last
        if self._has_tickets():
            return True
        if control[Word.STOP]:
            return False
        unaveraged = control.dealing.averages is not None and control[Word.ADOPTED] < last
        return unaveraged or (self._rule.versioned and self._rule.newest(self._state)[0] < last)

    @property
    def _last(self) -> int:
        """The last version of the run, as far as it is known."""
        return -(-self._control[Word.TOTAL] // self._rule.tickets_per_update)

    def _some_dead_worker(self) -> int:
        return min(set(range(self._control.workers)) - self._team.running())

    def _stop_all(self) -> None:
        """Let workers finish their update, for a short time, then end them. Their other failures are not raised.

        Where a version is yet to be evaluated they leave at once, and no later one that is due for evaluation is
        published: the run makes and evaluates it when it is resumed.
        """
        control = self._control
        control[Word.STOP] = 1
        try:
            self._let_finish()
        finally:
            control[Word.ABORT] = 1  # from here on nobody begins to write
            deadline = time.monotonic() + _WRITING
            while self._writing() and time.monotonic() < deadline:
                time.sleep(0.001)
            self._team.kill()
            for event in self._team.events(0.0):  # what they logged of updates that count
                if isinstance(event, Logged):
                    self.history.note(event)
            self.history.in_doubt.extend(self._doubted().values())

    def _let_finish(self) -> None:
        control, deadline = self._control, time.monotonic() + _GRACE
        while self._dead:
            self._note_death(*self._dead.popleft())
        while self._team.running() and time.monotonic() < deadline:
            if control[Word.OBSERVED] != control[Word.EVALUATED]:
                control[Word.ABORT] = 1
            for event in self._team.events(_SOON):
                if isinstance(event, Finished):
                    self.history.finished[event.worker] = event
                elif isinstance(event, Logged):
                    self.history.note(event)
                elif isinstance(event, Died | Failed):
                    control[Word.ABORT] = 1
                    self._note_end(event)

    def _writing(self) -> bool:
        """True while a worker writes in place. Ending it then would leave a part of its update in the model."""
        running = self._team.running()
        writers = {worker for worker, _, phase in self._control.owned() if phase is Phase.WRITING}
        return not self._rule.versioned and not running.isdisjoint(writers)

    def _note_end(self, event: Died | Failed) -> None:
        """Note a failure that came while the run was being ended. No lock is waited for, and nothing is settled."""
        worker = event.worker
        if isinstance(event, Failed):
            self._raised(event)
        elif worker not in self._raisers:
            self._note_death(worker, self._told(event))

    def _note_death(self, worker: int, failure: Failure) -> None:
        self.history.failures.append(_doubtful(failure, self._doubted().get(worker)))

    def _doubted(self) -> dict[int, int]:
        """Worker → the ticket that is in doubt, because the worker ended while it wrote in place."""
        settle = partial(self._rule.settle, self._state)
        owned = self._control.owned()
        return {worker: ticket for worker, ticket, phase in owned if settle(ticket, phase) is Settled.DOUBTED}


def _doubtful(failure: Failure, doubt: int | None) -> Failure:
    """The failure, with a note of the update that is in doubt because of it, if any."""
    if doubt is None:
        return failure
    return replace(failure, what=f"{failure.what}; update {doubt} may have been applied in part")


def _cause(death: Died) -> str:
    exit_code = death.exit_code
    if death.with_server:
        return "the end of Python's fork server (killed by somebody, or by the kernel when memory ran out)"
    if exit_code == -signal.SIGKILL:
        return "SIGKILL (sent by somebody, or by the kernel when memory ran out)"
    if exit_code < 0:
        try:
            return signal.Signals(-exit_code).name
        except ValueError:
            return f"signal {-exit_code}"
    return f"exit code {exit_code}"
