"""The second step of a run: memory is laid out, what is resumed lies in it, and the workers are ready to start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hogwild.data.before import DataBefore
from hogwild.data.seeding import loans_of_this_thread
from hogwild.errors import ArgumentError
from hogwild.optim.plan import initial_of
from hogwild.optim.rates import RateTable
from hogwild.run.agreement import agree
from hogwild.run.evaluator import Evaluator
from hogwild.run.job import Job
from hogwild.run.machines import Machines, come_back, dealt
from hogwild.run.owed import owed, shown_before
from hogwild.run.prepare import Prepared
from hogwild.run.saved.befallen import Befallen, read_befallen
from hogwild.run.saved.best import BestKeeper
from hogwild.run.saved.checkpoint import Checkpointer, ResumePoint, restore
from hogwild.run.saved.directory import METRICS
from hogwild.run.saved.metrics import read_metrics
from hogwild.run.saved.origin import Origin
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word
from hogwild.workers.kinds import TEAMS
from hogwild.workers.seat import planted_pause
from hogwild.workers.surroundings.bit_flags import BitFlags
from hogwild.workers.task import Task
from hogwild.workers.team import Team


@dataclass(frozen=True)
class OpenRun:
    """A run that can be started.

    What was prepared is not kept: the optimizer in it has a state, which would lie in memory once more.

    Attributes:
        job: what is to be done.
        tickets: of the whole run.
        first_samples: samples in the first batch.
        state: the parent's view of the shared memory.
        start: where it goes on from; from version 0 where it does not resume another.
        owed: versions whose evaluation was due before the run was resumed and was not made.
        origin: which run it is, and what it trains; None where it is neither saved nor resumed.
        logged: what workers logged in the parts before it was resumed.
        befallen: worker failures and updates in doubt of those parts.
        initial: the parameters it begins with, where it is audited; else none.
        compensation: what is changed of the optimizer because gradients are stale, in words.
        curvature: of the loss where it begins, where it is known.
        evaluator: evaluates versions in the parent while workers train.
        team: the workers.
        machines: the other machines, where this one was lost and comes back to their run; else None.
    """

    job: Job
    tickets: int
    first_samples: int
    state: SharedState
    start: ResumePoint
    owed: range
    origin: Origin | None
    logged: list[dict[str, float]]
    befallen: Befallen
    initial: list[Tensor]
    compensation: tuple[str, ...]
    curvature: float | None
    evaluator: Evaluator
    team: Team
    machines: Machines | None = None

    def samples(self, version: int) -> int:
        """Samples that this run has trained on, from where it began up to that version."""
        return self.job.samples_between(self.start.version, version, self.first_samples)

    @property
    def samples_before(self) -> int:
        """Samples trained on in the parts before it was resumed, where it is known how long they took."""
        return self.job.samples_between(0, self.start.version, self.first_samples) if self.start.seconds else 0

    def checkpointer(self) -> Checkpointer | None:
        """What saves any version as a checkpoint; None where it has no directory."""
        return _checkpointer(self.job, self.origin, self.start, 1)

    def parameters(self) -> list[Tensor]:
        """The trained parameters of the newest version, in memory of their own."""
        return _newest_parameters(self.job, self.state)


def open_run(prepared: Prepared) -> OpenRun:
    """Lay out the memory of a run and make its workers ready.

    Raises:
        ArgumentError: there is not enough memory, or something cannot be sent to worker processes, or the machines
            of the run do not fit together.
        NodeError: one of them did not come.
        RunDirectoryError: there is nothing to resume, or it is damaged.
    """
    job = prepared.job
    if job.party is not None:
        prepared = dealt(prepared, job.party)
    state = SharedState.create(prepared.plan)
    initial = initial_of(prepared.optimizer, prepared.optimized, prepared.sparse)
    state.prepare(prepared.trained, prepared.constant, list(prepared.anatomy.buffers.values()), initial)
    start = ResumePoint(0, 0, (), prepared.tickets)
    evaluations: list[dict[str, float]] = []
    logged: list[dict[str, float]] = []
    befallen = Befallen()
    shown = 0
    if job.resume is not None:
        start = restore(job.resume, state, job.rule, prepared.run)
        shown, evaluations, logged = _earlier(job, start)
        befallen = read_befallen(job.resume).where(start.done) + Befallen(in_doubt=start.in_doubt)
        # a version is evaluated a moment after it is made, and so perhaps after the checkpoint that is kept
        start = replace(start, seconds=max([start.seconds, *(row["seconds"] for row in evaluations)]))
    total = min(start.total, prepared.tickets) if start.stopped else prepared.tickets
    state.control.prepare(start.following, total, start.again, job.rule.tickets_per_update)
    _begin(job, state, start, shown)
    if state.exchange is not None:
        state.exchange.take(state.values(*job.rule.newest(state)))
    if job.party is not None:
        agree(prepared, job.party, state, start.version)
    machines = None
    if job.party is not None and job.party.returns:
        machines, start = come_back(job, state)
        _begin(job, state, start, start.version)
    try:
        return _opened(prepared, state, start, machines, evaluations, logged, befallen)
    except BaseException:
        if machines is not None:
            machines.close()
        raise


def _opened(
    prepared: Prepared,
    state: SharedState,
    start: ResumePoint,
    machines: Machines | None,
    evaluations: list[dict[str, float]],
    logged: list[dict[str, float]],
    befallen: Befallen,
) -> OpenRun:
    """The run, laid out."""
    job, compensation = prepared.job, prepared.optimizer_plan.compensation
    samples = partial(job.samples_between, start.version, first_batch=prepared.first_samples)
    evaluations, best = (evaluations, start.best) if job.judges else ([], None)  # they are machine 0's, to the end
    keeper = BestKeeper(job.config.keep_best, job.out, prepared.run, best)
    return OpenRun(
        job=job,
        tickets=prepared.tickets,
        first_samples=prepared.first_samples,
        state=state,
        start=start,
        owed=_owed(job, state, start),
        origin=prepared.origin,
        logged=logged,
        befallen=befallen,
        initial=_newest_parameters(job, state) if prepared.plan.audited else [],
        compensation=compensation.changes if compensation is not None else (),
        curvature=prepared.curvature.largest if prepared.curvature is not None else None,
        evaluator=Evaluator(job, state, samples, keeper, evaluations, start.seconds),
        team=_make_team(prepared, state, start),
        machines=machines,
    )


def _begin(job: Job, state: SharedState, start: ResumePoint, shown: int) -> None:
    """Tell the rule the version that the run begins with. `shown` is the last version that was shown for evaluation;
    under the rules in place that cannot be derived from the number of updates applied."""
    job.rule.begin(state.control, start.version)
    if not job.rule.versioned:
        state.control[Word.OBSERVED] = state.control[Word.EVALUATED] = shown


def _owed(job: Job, state: SharedState, start: ResumePoint) -> range:
    """The versions that are evaluated before workers start. There are none where several machines train: all of them
    have to hear whether `stop` ends the run there, so such a version is evaluated with the next one."""
    if job.rule.versioned or job.party is not None:
        return range(0)
    return owed(start, state.control[Word.OBSERVED], job.evaluate_every)


def _earlier(job: Job, start: ResumePoint) -> tuple[int, list[dict[str, float]], list[dict[str, float]]]:
    """What is kept of the earlier parts of a resumed run, without what will be computed again.

    Returns the last version up to which every due evaluation was made, the evaluations, and the rows that were logged.
    """
    assert job.resume is not None
    evaluations, logged = read_metrics(job.resume / METRICS)
    per_update, shown = job.rule.tickets_per_update, start.version
    if not job.rule.versioned:
        rows_are_whole = job.evaluate is not None and job.party is None
        shown = shown_before(start, evaluations, job.evaluate_every, rows_are_whole=rows_are_whole)
    return (
        shown,
        [row for row in evaluations if row["update"] <= shown],
        [row for row in logged if start.done(int(row["update"]) * per_update)],
    )


def _checkpointer(job: Job, origin: Origin | None, start: ResumePoint, every: int | None) -> Checkpointer | None:
    if job.out is None or every is None:
        return None
    run = origin.run if origin is not None else ""
    best = job.config.keep_best is not None
    return Checkpointer(job.out, every, run, start.seconds, best, job.evaluate_every)


def _make_team(prepared: Prepared, state: SharedState, start: ResumePoint) -> Team:
    job, config = prepared.job, prepared.job.config
    task = Task(
        config=config,
        plan=prepared.plan,
        optimizer_plan=prepared.optimizer_plan,
        rule=job.rule,
        work=job.work,
        source=job.source,
        loss=job.loss,
        optimizer=job.optimizer,
        lr_schedule=schedule if isinstance(schedule := job.lr_schedule, RateTable) else job.factors,
        flags=replace(BitFlags.capture(), intra_op=job.intra_op),
        evaluate_every=job.evaluate_every,
        traced=job.trace.at if job.trace is not None else frozenset(),
        stops=job.awaits_evaluations,
        checkpoint=_checkpointer(job, prepared.origin, start, config.checkpoint_every),
        pause=planted_pause.get(),
        loans=loans_of_this_thread(),
        draws=prepared.draws,
        again=job.again,
        batches=job.batches,
        planned_batches=job.planned_batches,
    )
    make = partial(TEAMS[job.kind], task, state, job.model, prepared.trained, prepared.constant)
    before = job.data_before or DataBefore(None)
    try:
        return _team_with_data(make, before) if TEAMS[job.kind].own_processes else make()
    finally:
        before.forget()


def _team_with_data(make: Callable[[], Team], before: DataBefore) -> Team:
    """Make a team of processes, to which the data set is sent.

    The trial step may have opened what no process can be sent, such as a file. So the data set is sent either as it is
    now or as it was before the trial step, and where one of the two cannot be sent, the other is tried.

    Raises:
        ArgumentError: neither can be sent.
    """
    as_now, as_before = nullcontext, before.put_back_on_trial
    first, second = (as_before, as_now) if before.holds_new_file_number() else (as_now, as_before)
    with suppress(ArgumentError), first():
        return make()
    with second():
        return make()


def _newest_parameters(job: Job, state: SharedState) -> list[Tensor]:
    copies = [torch.empty_like(parameter) for parameter in state.parameters(*job.rule.newest(state))]
    state.give_parameters(*job.rule.newest(state), copies)
    return copies
