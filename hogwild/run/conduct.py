"""The third step of a run: supervise the workers to the end, and save what came of it.

prepare(job) → open_run(prepared) → conduct(open run) → Run

From the moment at which a run has ended, or is interrupted, until it is saved no signal is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace

import torch

from hogwild.data.seeding import DrawDetector, loans_of_this_thread, read_at_rest
from hogwild.errors import HogwildError, NonFiniteError, some_of, warn_caller
from hogwild.kernels.kernel import Kernel
from hogwild.nodes.party import leaving_together
from hogwild.run.averages import as_one_of_several
from hogwild.run.callback import Ending, RunInfo
from hogwild.run.follower import Follower
from hogwild.run.going_on import going_on
from hogwild.run.job import Job
from hogwild.run.machines import Machines, machines_of
from hogwild.run.open import OpenRun, open_run
from hogwild.run.outcome import gather_run, logged_rows, with_other_machines
from hogwild.run.prepare import prepare
from hogwild.run.result import INTERRUPTED, Run
from hogwild.run.saved.befallen import WorkersFile
from hogwild.run.saved.directory import (
    CHECKPOINT,
    METRICS,
    ORIGIN,
    WORKERS,
    begin_directory,
    clear_leftovers,
    occupied,
    refuse_taken,
)
from hogwild.run.saved.environment import warn_of_another_place
from hogwild.run.saved.failure import noted_failure
from hogwild.run.saved.found import going_on_by
from hogwild.run.saved.metrics import MetricsFile, as_json, by_update, replace_metrics
from hogwild.run.saved.record import fill, has_ended, saved_run
from hogwild.run.trial.holes import naming_holes
from hogwild.run.trial.lone_samples import naming_lone_samples
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.words import Word
from hogwild.workers.failures import WorkerHistory
from hogwild.workers.held_signals import HeldSignals
from hogwild.workers.kernel_loop import LOWER
from hogwild.workers.kinds import TEAMS
from hogwild.workers.supervisor import Supervisor
from hogwild.workers.surroundings.scripted import forget_optimized_scripts, scripts_as_written
from hogwild.workers.surroundings.torch_threads import torch_threads

_ROWS = 1 << 16  # of a table that are looked at at once


def run_job(job: Job, began: float) -> Run:
    """One run from its arguments to its result; `began` is the CLOCK_MONOTONIC second at which it was asked for.

    Raises:
        HogwildError: see `hogwild.train`.
    """
    goes_on = job.goes_on
    if job.party is not None:
        job = job if job.party.leads else replace(job, out=None)  # the record is kept once
    forget_optimized_scripts()
    torch_threads.leave_lost()
    # the trial and the evaluations compute as the workers do
    with leaving_together(job.party), occupied(job.out), scripts_as_written():
        if job.out is not None:
            if not (job.overwrite or job.goes_on):
                refuse_taken(job.out)
            clear_leftovers(job.out)
        job = going_on(as_one_of_several(job)).anchored
        prepared = prepare(job)
        if job.resume is not None and goes_on and has_ended(job.resume):
            return _as_it_ended(job)
        run = open_run(prepared)
        run.evaluator.try_evaluate()
        del prepared  # with the caller's optimizer, whose state may be as large as the model
        with _naming_what_goes_on(run), noted_failure(job.out), naming_holes(job), naming_lone_samples(job):
            return conduct(run, began)


@contextmanager
def _naming_what_goes_on(run: OpenRun) -> Iterator[None]:
    """Inside, what the run fails by has a note of what goes on with it, where there is a checkpoint of it."""
    try:
        yield
    except Exception as error:
        out = run.job.out
        if out is not None and run.job.out_as_given is not None and (out / CHECKPOINT).exists() and not has_ended(out):
            error.add_note(f"the run was saved: {going_on_by(run.job.out_as_given, run.origin)} goes on")
        raise


def _as_it_ended(job: Job) -> Run:
    """The run in a directory, where there is nothing to go on with; the model gets its state."""
    assert job.resume is not None
    run = replace(saved_run(job.resume), out=job.out_as_given)
    if job.party is not None:
        job.party.leave(f"the run in {job.resume} has ended")
    fill(job.model, run)
    warn_caller(
        f"the run in {job.out_as_given or job.resume} has ended after {run.updates} updates; it is given back as it is"
    )
    return run


def conduct(run: OpenRun, began: float) -> Run:
    """Train. The model holds the newest version when this returns or raises.

    Raises:
        WorkerError, NonFiniteError, NotReproducible: see `hogwild.train`.
    """
    with closing(run.machines) if run.machines is not None else nullcontext():
        run = _begun(run)
        with run.job.callbacks.told(_info(run)) as ending:
            if run.job.party is not None:
                run.job.party.trains = True
            try:
                _conduct(run, began, ending)
            finally:
                run.state.locks.let_go()
    assert ending.run is not None
    return ending.run


def _conduct(run: OpenRun, began: float, ending: Ending) -> None:
    job, evaluator = run.job, run.evaluator
    with HeldSignals() as signals, machines_of(job, run.state, run.start.version, run.machines) as machines:
        if machines is not None:
            evaluator.decided = machines.decided
        supervisor, ending.tell_rest = _supervisor(run, signals, machines)
        try:
            evaluator.evaluate_start(run.start.version, run.owed)
            draws = _draws_of_loop(job)
            supervisor.supervise()
            evaluator.take_newest()
            _warn_of_draws(job, draws)
            _refuse_not_finite(job)
            if machines is not None:
                machines.tell_end(digest_bytes(job.model.state_dict()).hex())
            evaluator.evaluate_newest()
            evaluator.loss_watch.tell()
            if machines is not None:
                machines.finish()
            signals.hold()
        except (KeyboardInterrupt, SystemExit) as error:
            signals.hold()
            if machines is not None:
                machines.call_off()
            evaluator.take_newest()
            ending.run = _saved_interrupted(run, supervisor.history, machines, began)
            if ending.run is not None and job.out_as_given is not None:
                how = going_on_by(job.out_as_given, run.origin)
                error.add_note(f"the run was saved at update {ending.run.updates}: {how} goes on")
            raise
        except BaseException as error:
            evaluator.take_newest()
            if isinstance(error, Exception):
                _leave_record(run, supervisor.history, error, checkpoint=machines is None)
            raise
        evaluator.take_newest()  # an evaluation in training mode moves running averages
        stopped = "stop" if run.state.control[Word.TOTAL] < run.tickets else None
        result = gather_run(run, supervisor.history, stopped, began)
        if machines is not None:
            result = with_other_machines(result, machines, machines.usage_of_all([*result.workers]))
        if job.out is not None:
            result.write(job.out)
        ending.run = result


def _draws_of_loop(job: Job) -> DrawDetector | None:
    """What tells of draws from generators that all threads share, where loops of the user's own are to give the same
    bits; None elsewhere, and while somebody else draws who will put them back."""
    if job.source is not None or not job.rule.same_bits or TEAMS[job.kind].own_processes:
        return None
    return read_at_rest(DrawDetector, loans_of_this_thread())


def _warn_of_draws(job: Job, draws: DrawDetector | None) -> None:
    if draws is not None and (drawn := read_at_rest(draws.drawn, loans_of_this_thread())):
        warn_caller(
            f"{' and '.join(drawn)}, which all threads share, was drawn from or seeded during the run; where the loop "
            f"did that, {job.rule.name} does not give the same bits: use worker.info.generator, or kind='processes'"
        )


def _refuse_not_finite(job: Job) -> None:
    """Refuse what a kernel that writes in place has made, where its tables are not finite.

    Raises:
        NonFiniteError: they are not.
    """
    kernel = job.source
    if not isinstance(kernel, Kernel) or job.rule.versioned or job.config.at("on_nonfinite", job.updates) == "ignore":
        return
    tables = kernel.parameters_in(job.model)
    bad = [
        name
        for name, own in tables.items()
        if not all(part.isfinite().all() for part in torch.split(own.detach(), _ROWS))
    ]
    if bad:
        raise NonFiniteError(f"rows of {some_of(bad)} are not finite after {job.updates} updates ({LOWER})")


def _info(run: OpenRun) -> RunInfo:
    job, origin = run.job, run.origin
    return RunInfo(
        config=job.config,
        kind=job.kind,
        settings=deepcopy(origin.training) if origin is not None else {},
        id=origin.run if origin is not None else "",
        start=run.start.version,
        updates=job.updates,
        out=job.out,
        node=job.party.node if job.party is not None else 0,
        evaluations=deepcopy(run.evaluator.evaluations),
    )


def _begun(run: OpenRun) -> OpenRun:
    """The run with its directory begun, where it has one."""
    job, origin = run.job, run.origin
    if origin is not None and job.resume is not None:
        origin = origin.gone_on(run.start.version, job.config, job.kind, job.change)
        if job.rule.same_bits:
            warn_of_another_place(origin.environment, origin.environments[-1], job.resume)
    if origin is not None and job.out is not None:
        rows = as_json(by_update(run.evaluator.evaluations, run.logged))
        files = {ORIGIN: origin.to_json()}
        if rows or job.resume is not None:  # of which rows after the checkpoint go
            files[METRICS] = rows
        befell = run.befallen.to_json()
        if befell or (job.goes_on and (job.out / WORKERS).exists()):
            files[WORKERS] = befell
        begin_directory(job.out, job.config, origin.run, files, fresh=not job.goes_on)
        run.evaluator.keeper.put_back()
    return replace(run, origin=origin)


def _supervisor(run: OpenRun, signals: HeldSignals, machines: Machines | None) -> tuple[Supervisor, Callable[[], None]]:
    """The supervisor, and what writes and tells the callbacks its notes since it last looked."""
    job, evaluator = run.job, run.evaluator

    def tell() -> None:
        workers.look()
        follower.look()

    def look() -> None:
        signals.release()  # whoever was to be interrupted by them goes on
        if machines is not None:
            machines.look()
        evaluator.look()
        metrics.look()
        tell()

    supervisor = Supervisor(
        run.team,
        run.state,
        job.rule,
        job.config,
        look,
        shows=job.evaluate_every > 0 or job.trace is not None,
    )
    metrics = MetricsFile(job.out, evaluator.evaluations, supervisor.history, run.logged)
    evaluator.note = metrics.look
    workers = WorkersFile(job.out, supervisor.history, machines.failures if machines is not None else ())
    follower = Follower(job.callbacks, supervisor.history, job.out)
    return supervisor, tell


def _saved_interrupted(run: OpenRun, history: WorkerHistory, machines: Machines | None, began: float) -> Run | None:
    """The run so far, saved with a checkpoint; None where it has no directory."""
    checkpointer = run.checkpointer()
    if checkpointer is None:
        return None
    shown = run.evaluator.shown
    run.evaluator.keeper.forget_after(shown)
    result = gather_run(run, history, INTERRUPTED, began)
    if machines is not None:
        result = with_other_machines(result, machines, machines.usage_so_far([*result.workers]))
    result.write(checkpointer.directory)
    checkpointer.save(run.state, run.job.rule, *run.job.rule.newest(run.state), shown=shown)
    return result


def _leave_record(run: OpenRun, history: WorkerHistory, error: Exception, *, checkpoint: bool) -> None:
    """Save what a run that failed by that error has come to: what was measured, and a `checkpoint` if so wished."""
    try:
        if checkpoint:
            _leave_checkpoint(run, error)
    except HogwildError as failure:
        error.add_note(f"what was trained so far could not be saved: {failure}")
    try:
        if run.job.out is not None:
            rows = by_update(run.evaluator.evaluations, logged_rows(run, history))
            replace_metrics(run.job.out, rows)  # those after a checkpoint go where the run goes on from that
    except HogwildError as failure:
        error.add_note(f"what was logged last could not be saved: {failure}")


def _leave_checkpoint(run: OpenRun, error: Exception) -> None:
    """Save a checkpoint, so that the run can be gone on with once that error is mended. Not where it has checkpoints as
    it goes, nor where numbers are not finite, for those before may be ruined already."""
    checkpointer = run.checkpointer()
    version, slot = run.job.rule.newest(run.state)
    if checkpointer is None or version == run.start.version:
        return
    if run.job.config.checkpoint_every or isinstance(error, NonFiniteError):
        return
    shown = run.evaluator.shown
    run.evaluator.keeper.forget_after(shown)
    checkpointer.save(run.state, run.job.rule, version, slot, shown=shown)
