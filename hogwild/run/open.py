"""The second step of a run: memory is laid out, what is resumed lies in it, and the workers are ready to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from hogwild.optim.plan import initial_of
from hogwild.run.checkpoint import Checkpointer, ResumePoint, restore
from hogwild.run.evaluator import Evaluator
from hogwild.run.job import Job
from hogwild.run.prepare import Prepared
from hogwild.shared.state import SharedState
from hogwild.workers.bit_flags import BitFlags
from hogwild.workers.kinds import TEAMS
from hogwild.workers.seat import planted_pause
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
        first: the version it goes on from; 0 where it does not resume another.
        initial: the parameters it begins with, where it is audited; else none.
        evaluator: what the parent does meanwhile.
        team: the workers.
    """

    job: Job
    tickets: int
    first_samples: int
    state: SharedState
    first: int
    initial: list[Tensor]
    evaluator: Evaluator
    team: Team

    def samples(self, version: int) -> int:
        """Samples that this run has trained on, from where it began up to that version."""
        return self.job.samples_between(self.first, version, self.first_samples)

    def parameters(self) -> list[Tensor]:
        """The trained parameters of the newest version, in memory of their own."""
        return _newest_parameters(self.job, self.state)


def open_run(prepared: Prepared) -> OpenRun:
    """Lay out the memory of a run and make its workers ready.

    Raises:
        ArgumentError: there is not enough memory, or something cannot be sent to worker processes.
        RunDirectoryError: there is nothing to resume, or it is damaged.
    """
    job = prepared.job
    state = SharedState.create(prepared.plan)
    initial = initial_of(prepared.optimizer, prepared.optimized, prepared.sparse)
    state.prepare(prepared.trained, prepared.constant, list(prepared.anatomy.buffers.values()), initial)
    start = ResumePoint(0, 0, (), prepared.tickets)
    if job.resume is not None:
        start = restore(job.resume, state, job.rule)
    state.control.prepare(start.following, min(start.total, prepared.tickets), start.again)
    job.rule.begin(state.control, start.version)
    samples = partial(job.samples_between, start.version, first_batch=prepared.first_samples)
    return OpenRun(
        job=job,
        tickets=prepared.tickets,
        first_samples=prepared.first_samples,
        state=state,
        first=start.version,
        initial=_newest_parameters(job, state) if prepared.plan.audited else [],
        evaluator=Evaluator(job, state, samples),
        team=_make_team(prepared, state),
    )


def _make_team(prepared: Prepared, state: SharedState) -> Team:
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
        lr_schedule=job.lr_schedule,
        flags=replace(BitFlags.capture(), intra_op=job.intra_op),
        evaluate_every=job.evaluate_every,
        traced=job.trace.at if job.trace is not None else frozenset(),
        stops=job.stop is not None,
        checkpoint=Checkpointer(job.out, config.checkpoint_every) if job.out and config.checkpoint_every else None,
        pause=planted_pause.get(),
    )
    return TEAMS[config.kind](task, state, job.model, prepared.trained, prepared.constant)


def _newest_parameters(job: Job, state: SharedState) -> list[Tensor]:
    _, slot = job.rule.newest(state)
    return [parameter.clone() for parameter in state.slots[slot].parameters]
