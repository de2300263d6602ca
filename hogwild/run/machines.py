"""The other machines of a run, as its parent sees them: what is agreed upon before, the courier, what is told after.

prepared → crews told, tickets dealt → memory laid out → all that decides bits compared → courier started → …
… all versions made → courier ends when every machine has them → final bits compared, usage told

One that comes back compares itself with what machine 0 told, is let in, and starts its courier, which gets a version,
before its workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from math import nan
from multiprocessing import connection
from typing import Any, NoReturn

from hogwild.errors import ArgumentError, NodeError, NonFiniteError, NotReproducible, printable, with_type
from hogwild.nodes.party import Party, forget
from hogwild.nodes.peer import Back, Lost
from hogwild.nodes.returning import ENDED, TRAINS, Door, be_let_in
from hogwild.nodes.store_watch import StoreWatch, told_in_time
from hogwild.run.agreement import END, PREPARING, refuse_another_end
from hogwild.run.courier_main import Begun, Connected, Ended, Ready, Rendezvous, Told, courier_main
from hogwild.run.job import Job
from hogwild.run.prepare import Prepared
from hogwild.run.result import WorkerUsage
from hogwild.run.saved.checkpoint import ResumePoint
from hogwild.run.trial.dry_run import as_in_a_worker, seconds_of_a_gradient
from hogwild.shared.dealing import Dealing, turns_of
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word
from hogwild.workers.process.spawn import make_process, start_context, start_process

_log = logging.getLogger("hogwild")
_LOOK_EVERY = 0.2  # seconds
_LEAVING = 8.0  # seconds to say that this machine ends, and on machine 0 for the others to say so too
_TELLING = 30.0  # seconds for the others to tell what they used


def dealt(prepared: Prepared, party: Party) -> Prepared:
    """The same with tickets dealt to all machines.

    Raises:
        ArgumentError: there are too many workers, or sparse gradients where they cannot be, or the machine whose place
            this one takes had another number of workers.
        NodeError: a machine did not come.
    """
    job, plan = prepared.job, prepared.plan
    averages = job.averages
    if (averages is None and plan.sparse) or plan.tables:
        names = ", ".join(plan.parameters.entries[i].name for i in plan.tables or plan.sparse)
        raise ArgumentError(f"{names} has sparse gradients, which do not travel between machines; use sparse=False")
    if not party.returns:
        party.tell("workers", plan.workers)
    party.crews = workers = party.hear_all("workers", PREPARING)
    if workers[party.node] != plan.workers:
        raise ArgumentError(
            f"workers is {plan.workers}, and machine {party.node}, whose place this one takes, had "
            f"{workers[party.node]}; set workers={workers[party.node]}"
        )
    try:
        job.rule.check(sum(workers.values()) if averages is None else plan.workers)
    except ArgumentError as error:
        if averages is not None:
            raise
        most, set_more = job.rule.most_workers or 1, str(error).rpartition(" or ")[0]
        fewer = f"workers={most // party.nodes} on each" if most >= party.nodes else "fewer machines"
        raise ArgumentError(f"{party.nodes} machines together: {set_more}, or {fewer}") from None
    first = sum(workers[node] for node in range(party.node))
    turns = _turns(prepared, party) if averages is None else ()
    return replace(prepared, plan=replace(plan, dealing=Dealing(party.nodes, party.node, first, averages, turns)))


def _turns(prepared: Prepared, party: Party) -> tuple[int, ...]:
    """Who is dealt tickets when: a machine that computes more gradients a second, more of them. That is measured once
    all have come, for one whose programs start is slower than it will be."""
    job = prepared.job
    if not party.returns:
        seconds = 0.0  # of a loop of the user's own nothing is known
        if job.source is not None and job.loss is not None:
            of, config = (job.model, prepared.anatomy.trained, job.source, job.loss), job.config
            with as_in_a_worker(job.intra_op):
                seconds = seconds_of_a_gradient(*of, config.seed, config.workers, sent=job.copied_together)
        party.tell("seconds", seconds)
    told = party.hear_all("seconds", PREPARING)
    known = all(told.values())
    return turns_of([party.crews[node] / (told[node] if known else 1.0) for node in range(party.nodes)])


class Machines:
    """The courier of this machine, and what it tells.

    Args:
        job: what is done.
        party: by whom.
        state: the parent's view of the shared state.
        start: the version that the run begins with.

    Attributes:
        failures: what befell the others, a sentence each.
    """

    def __init__(self, job: Job, party: Party, state: SharedState, start: int) -> None:
        self.failures: list[str] = []
        self._party = party
        self._state = state
        self._rule = job.rule
        self._digest = ""
        self._ended = False
        self._closed = False
        self._ready = False
        self._connected = False
        self._begun: Begun | None = None
        self._door = Door(party, lambda: state.control[Word.LIVING])
        self._pipe, theirs = start_context().Pipe()
        invitation = replace(party.invitation, token="", node=party.node)
        meeting = Rendezvous(invitation, party.prefix, party.node, party.returns)
        arguments = (state.plan, state.arena, start, job.rule.tickets_per_update, meeting, theirs)
        self._process = make_process(courier_main, arguments, "hogwild-courier")
        started = start_process(self._process)
        theirs.close()
        if not started:
            raise NodeError(f"the fork server of machine {party.node} was killed")
        if party.leads:
            party.decide(TRAINS, True)
        self._watch = StoreWatch(party, self._door, self._pipe.send)

    def come_back(self) -> ResumePoint:
        """Be let in by those that live, once the courier is there, and get a version: where this machine begins.

        Raises:
            ArgumentError, NodeError: see `be_let_in` and `look`.
        """
        party = self._party
        self._until(lambda: self._ready)
        living = be_let_in(party)
        party.lost = set(range(party.nodes)) - {party.node, *living}
        self._pipe.send(living)
        self._until(lambda: self._begun is not None)
        assert self._begun is not None
        version = self._begun.version
        _log.warning("machine %d comes back at update %d", party.node, version)
        return ResumePoint(version, version * self._rule.tickets_per_update, (), self._begun.total)

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            connection.wait([self._pipe], _LOOK_EVERY)
            self.look()

    def look(self) -> None:
        """Hear what the courier tells, and whether another machine has ended the run.

        Raises:
            KeyboardInterrupt: one was interrupted.
            NodeError: one found a fault, or the machine that keeps the record was lost, or the courier of this one.
        """
        try:
            while not self._ended and self._pipe.poll():
                self._handle(self._pipe.recv())
        except (EOFError, OSError):
            raise NodeError(f"the courier of machine {self._party.node} was killed") from None
        if self._watch.unreached and not (self._connected or self._ended):
            raise NodeError(f"machine 0 was lost while the machines connected: {self._watch.unreached}")
        if not self._ended and self.called_off:
            self._end_too()
        if self._watch.left and not (self._connected or self._ended):
            node, why = self._watch.left
            raise NodeError(f"machine {node} has left before it trained: {printable(str(why), 400)}")

    @property
    def called_off(self) -> list[Any]:
        """The machine that has ended the run for all, and why; no words: it was interrupted. Empty: none has."""
        return self._watch.called_off

    @property
    def heard_why(self) -> bool:
        """True where another machine has said why it does not go on, and looks whether this one leaves too."""
        return bool(self._watch.called_off or self._watch.left)

    def call_off(self, why: str = "") -> None:
        """End the run for all, for that reason; without one they are interrupted, for this machine was."""
        self._watch.call_off(why)

    def decided(self, what: str) -> Any:
        """What was decided for all, as far as it is known here; None: nothing yet.

        Raises:
            NodeError: nothing, and the store could not be asked for as long as makes a silent machine a lost one.
        """
        watch, answer = self._watch, self._watch.decided(what)
        silent = time.monotonic() - watch.unreached_since if watch.unreached and not self._ended else 0.0
        if answer is None and silent > self._party.invitation.timeout:
            raise NodeError(f"what machine 0 decides is not heard any more: {watch.unreached}")
        return answer

    def _end_too(self) -> NoReturn:
        node, why = self.called_off
        if why:
            raise NodeError(f"machine {node} has ended the run: {printable(why, 400)}")
        raise KeyboardInterrupt

    def _handle(self, news: Told) -> None:
        match news:
            case Lost():
                self._lose(news)
            case Back():
                self._welcome(news.node)
            case Ready():
                self._ready = True
            case Connected():
                self._connected = self._watch.connected = True
            case Begun():
                self._begun = news
                self._connected = self._watch.connected = True
            case Ended():
                self._ended = True
                if news.why:
                    forget(self._party.invitation)
                    raise NodeError(f"machine {self._party.node} is cut off from the others: {printable(news.why)}")

    def _welcome(self, node: int) -> None:
        version, _ = self._rule.newest(self._state)
        self._party.lost.discard(node)
        self._tell_lost()
        self._door.done_with(node)
        self.failures.append(f"machine {node} came back at update {version}")
        _log.warning("%s", self.failures[-1])

    def _lose(self, lost: Lost) -> None:
        """Go on without a machine, unless it was the one that keeps the record."""
        self._door.done_with(lost.node)
        if lost.node in self._party.lost:  # it was on its way back
            return
        self._watch.hear_why()
        if self.called_off:
            self._end_too()
        version = self._rule.newest(self._state)[0] if lost.update is None else lost.update
        why = self._watch.why_left(lost.node) or printable(lost.why)
        what = f"machine {lost.node} was lost at update {version}: {why}"
        self._party.lost.add(lost.node)
        self._tell_lost()
        if lost.node == 0:
            forget(self._party.invitation)
            if self._watch.is_lost_to_the_leader():
                raise NodeError(self._fenced())
            raise NodeError(
                f"{what}; it decides and keeps the record, so the run ends: go on from its last checkpoint (resume)"
            )
        self.failures.append(what)
        _log.warning("%s; the others go on", what)

    def _tell_lost(self) -> None:
        if self._party.leads:
            self._watch.tell_lost()

    def _fenced(self) -> str:
        """What a machine is told that hears machine 0 no more, where that one lives."""
        comes = "; start it again, and it comes back" if self._state.exchange is None else ""
        return (
            f"machine {self._party.node} stood still for too long, or was cut off: machine 0 counts it as lost, and "
            f"the run goes on without it{comes}"
        )

    def finish(self) -> None:
        """Wait until every machine has all versions; errors are those of `look`."""
        self._until(lambda: self._ended)

    def close(self) -> None:
        """End the courier, should it still run."""
        if self._closed:
            return
        self._closed = True
        if self._party.leads:
            with suppress(NodeError):
                self._party.decide(ENDED, True)
        self._watch.close()
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    def tell_end(self, digest: str) -> None:
        """Tell the others with what bits this machine ended, once all versions are made."""
        self._digest = digest
        told_in_time(lambda: self._party.tell(END, digest))

    def usage_of_all(self, own: list[WorkerUsage]) -> list[WorkerUsage]:
        """The usage of the workers of all machines, on the machine that leads; elsewhere, its own. All versions are
        made by then, so one that does not tell any more is no fault of the run: it is noted.

        Raises:
            NotReproducible: a machine ended with other bits.
        """
        party = self._party
        if not party.leads:
            told_in_time(lambda: party.tell("usage", [asdict(usage) for usage in own]))
            ended: dict[int, Any] = {}
            told_in_time(lambda: ended.update(party.hear_some(END, _TELLING, [0])), _TELLING)
            refuse_another_end(party.node, self._digest, ended)
            return own
        others = set(range(1, party.nodes)) - party.lost
        told = party.hear_some("usage", _TELLING, others)
        refuse_another_end(party.node, self._digest, party.hear_some(END, 0.0, told))
        silent = others - told.keys()
        self.failures += [f"machine {node} has not told what its workers used" for node in sorted(silent)]
        found = [*own, *(WorkerUsage(**usage) for node in sorted(told) for usage in told[node])]
        return [*found, *self._of_silent(party.lost | silent)]

    def usage_so_far(self, own: list[WorkerUsage]) -> list[WorkerUsage]:
        """The usage of the workers of all machines where nobody is asked any more, for the run was interrupted."""
        return [*own, *self._of_silent(set(range(self._party.nodes)) - {self._party.node})]

    def _of_silent(self, nodes: set[int]) -> list[WorkerUsage]:
        """What is known of the workers of machines that do not tell it; of machines apart nothing is."""
        if self._state.exchange is not None:
            return []
        crews, journal = self._party.crews, self._state.journal.rows()["worker"]
        firsts = {node: sum(crews[other] for other in range(node)) for node in sorted(nodes)}
        workers = [(node, worker) for node, first in firsts.items() for worker in range(first, first + crews[node])]
        return [
            WorkerUsage(worker, int((journal == worker).sum()), 0, nan, nan, 0, None, node=node)  # those applied
            for node, worker in workers
        ]

    def samples_of(self, of_all: int) -> int:
        """Of so many samples of all machines, those that were trained on: the share of a lost one apart is left out."""
        living = self._party.nodes - len(self._party.lost)
        return of_all if self._state.exchange is None else of_all * living // self._party.nodes


def come_back(job: Job, state: SharedState) -> tuple[Machines, ResumePoint]:
    """The other machines of a run that this one comes back to, and where it begins.

    Raises:
        ArgumentError: it is not let in.
        NodeError: the others do not answer, or were lost.
    """
    assert job.party is not None
    machines = Machines(job, job.party, state, 0)
    try:
        return machines, machines.come_back()
    except BaseException:
        machines.close()
        forget(job.party.invitation)
        raise


@contextmanager
def machines_of(job: Job, state: SharedState, start: int, machines: Machines | None) -> Iterator[Machines | None]:
    """The other machines while a run is made, where they are not there already; None where there are none."""
    if job.party is None:
        yield None
        return
    machines = machines or Machines(job, job.party, state, start)
    try:
        yield machines
    except (KeyboardInterrupt, SystemExit):
        told_in_time(job.party.leave, _LEAVING)
        raise
    except Exception as error:
        own = not isinstance(error, NodeError)  # which the others have not seen
        if isinstance(error, NotReproducible | NonFiniteError) or (job.party.leads and own):
            machines.call_off(with_type(error))
        if own or machines.heard_why:
            told_in_time(partial(job.party.leave, with_type(error)), _LEAVING)
        raise
    finally:
        machines.close()
