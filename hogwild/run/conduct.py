"""The third step of a run: supervise the workers to the end, gather what came of it, save it.

prepare(job) → open_run(prepared) → conduct(open run) → Run
"""

from __future__ import annotations

import torch

from hogwild.run.audit import Audit, close_account
from hogwild.run.checkpoint import Checkpointer, clear_staging
from hogwild.run.directory import begin_directory
from hogwild.run.job import Job
from hogwild.run.open import OpenRun, open_run
from hogwild.run.prepare import prepare
from hogwild.run.result import Run, Staleness, WorkerUsage
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.words import Field, Word
from hogwild.workers.failures import WorkerHistory
from hogwild.workers.supervisor import Supervisor


def run_job(job: Job, began: float) -> Run:
    """One run from its arguments to its result; `began` is the CLOCK_MONOTONIC second at which it was asked for.

    Raises:
        HogwildError: see `hogwild.train`.
    """
    return conduct(open_run(prepare(job)), began)


def conduct(run: OpenRun, began: float) -> Run:
    """Train. The model holds the newest version when this returns or raises.

    Raises:
        WorkerError, NonFiniteError, NotReproducible: see `hogwild.train`.
    """
    job, out, evaluator = run.job, run.job.out, run.evaluator
    if out is not None:
        begin_directory(out, job.config)
        clear_staging(out)
    supervisor = Supervisor(
        run.team,
        run.state,
        job.rule,
        job.config,
        evaluator.look,
        shows=job.evaluate_every > 0 or job.trace is not None,
        asks=job.stop is not None,
    )
    try:
        supervisor.supervise()
        evaluator.take_newest()
        evaluator.evaluate_newest()
    except (KeyboardInterrupt, SystemExit):
        evaluator.take_newest()
        if out is not None:
            gather(run, supervisor.history, "interrupted", began).save(out)
            version, slot = job.rule.newest(run.state)
            Checkpointer(out, 1).save(run.state, job.rule, version, slot)
        raise
    except BaseException:
        evaluator.take_newest()
        raise
    evaluator.take_newest()  # an evaluation in training mode moves running averages
    stopped = "stop" if run.state.control[Word.TOTAL] < run.tickets else None
    result = gather(run, supervisor.history, stopped, began)
    if out is not None:
        result.save(out)
    return result


def gather(run: OpenRun, history: WorkerHistory, stopped: str | None, began: float) -> Run:
    """What the run has come to, as it stands in shared memory and in the caller's model."""
    state, job = run.state, run.job
    version, _ = job.rule.newest(state)
    first, last = run.evaluator.span()
    values = job.model.state_dict().items()
    model_state = {name: value.detach().clone() for name, value in values if isinstance(value, torch.Tensor)}
    journal = state.journal.rows(version if job.rule.versioned else None)
    return Run(
        config=job.config,
        state=model_state,
        digest=digest_bytes(model_state).hex(),
        updates=version,
        samples=run.samples(version),
        seconds=last - first,
        startup_seconds=first - began,
        journal=journal,
        seals=state.journal.seals(version) if job.rule.versioned else {},
        evaluations=tuple(run.evaluator.evaluations),
        logged=tuple(
            {"update": logged.update, "batch": logged.batch, "worker": logged.worker, **logged.metrics}
            for logged in history.logged
        ),
        workers=tuple(_usage(run, history, index) for index in range(state.control.workers)),
        staleness=Staleness.of(journal, job.rule.staleness),
        failures=tuple(map(str, history.failures)),
        in_doubt=tuple(history.in_doubt),
        stopped=stopped,
        audit=_audit(run, history),
        out=job.out,
    )


def _audit(run: OpenRun, history: WorkerHistory) -> Audit | None:
    """The closed account; None where none was kept, or a worker died or was stopped with its own."""
    totals, plan = run.state.audit, run.state.plan
    if totals is None or totals.reported < plan.workers or history.failures:
        return None
    return close_account(plan.parameters, totals, run.initial, run.parameters())


def _usage(run: OpenRun, history: WorkerHistory, index: int) -> WorkerUsage:
    row = run.state.control.row(index)
    end = history.finished.get(index)
    return WorkerUsage(
        worker=index,
        computed=row[Field.COMPUTED],
        skipped=row[Field.SKIPPED],
        cpu_seconds=end.cpu_seconds if end else float("nan"),
        waited_seconds=row[Field.WAITED] / 1e9,
        rss=end.rss if end else 0,
        pss=end.pss if end else None,
    )
