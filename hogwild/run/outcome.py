"""What a run has come to: its `Run`, made of shared memory, of the supervisor's notes and of the caller's model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hogwild.run.audit import Audit, close_account
from hogwild.run.machines import Machines
from hogwild.run.open import OpenRun
from hogwild.run.result import Run, Staleness, WorkerUsage
from hogwild.run.saved.befallen import Befallen
from hogwild.run.saved.metrics import Row, all_logged
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.words import Field
from hogwild.workers.failures import WorkerHistory


def gather_run(run: OpenRun, history: WorkerHistory, stopped: str | None, began: float) -> Run:
    """The `Run`: what was trained up to now. `stopped` says why it ended early, or is None; `began` is the
    CLOCK_MONOTONIC second at which it was asked for."""
    state, job = run.state, run.job
    version, _ = job.rule.newest(state)
    first, last = run.evaluator.span()
    model_state = run.evaluator.newest_state()
    journal = state.journal.rows(version if job.rule.versioned else None)
    average = state.average(version)
    befallen = run.befallen + Befallen.of(history)
    return Run(
        config=job.config,
        state=model_state,
        digest=digest_bytes(model_state).hex(),
        updates=version,
        samples=run.samples(version),
        seconds=run.start.seconds + last - first,
        startup_seconds=first - began,
        journal=journal,
        seals=state.journal.seals(version) if job.rule.versioned else {},
        evaluations=tuple(run.evaluator.evaluations),
        logged=logged_rows(run, history, version),
        workers=tuple(_usage(run, history, index) for index in range(state.control.workers)),
        staleness=Staleness.of(journal, job.rule.staleness),
        failures=befallen.failures,
        in_doubt=befallen.in_doubt,
        stopped=stopped,
        audit=_audit(run, history),
        out=job.out_as_given,
        samples_before=run.samples_before,
        seconds_before=run.start.seconds,
        compensation=run.compensation,
        curvature=run.curvature,
        origin=run.origin,
        best=run.evaluator.keeper.best,
        ema_state=run.evaluator.newest_state(average) if average else None,
        kind=job.kind,
        kind_because=job.kind_because,
        nodes=job.party.nodes if job.party is not None else 1,
        updates_per_epoch=job.updates_per_epoch,
        in_tickets=job.source is None,
    )


def with_other_machines(result: Run, machines: Machines, usage: Sequence[WorkerUsage]) -> Run:
    """The result with the workers, samples and failures of the other machines; `usage` is that of all workers."""
    workers = tuple(sorted(usage, key=lambda one: one.worker))
    failures = (*result.failures, *machines.failures)
    return replace(result, workers=workers, samples=machines.samples_of(result.samples), failures=failures)


def logged_rows(run: OpenRun, history: WorkerHistory, version: int | None = None) -> tuple[Row, ...]:
    """What was logged; up to a `version`, where one is given and updates are numbered as versions are, so that there is
    none of an update that the end of the run has dropped."""
    return all_logged(run.logged, history, math.inf if version is None or not run.job.rule.same_bits else version)


def _audit(run: OpenRun, history: WorkerHistory) -> Audit | None:
    """The closed account; None where none was kept, or a worker died or was stopped with its own."""
    totals, plan = run.state.audit, run.state.plan
    if totals is None or totals.reported < plan.workers or history.failures:
        return None
    return close_account(plan.parameters, totals, run.initial, run.parameters())


def _usage(run: OpenRun, history: WorkerHistory, index: int) -> WorkerUsage:
    control = run.state.control
    row = control.row(index)
    end = history.finished.get(index)
    return WorkerUsage(
        worker=control.numbers[index],
        computed=row[Field.COMPUTED],
        skipped=row[Field.SKIPPED],
        cpu_seconds=end.cpu_seconds if end else float("nan"),
        waited_seconds=row[Field.WAITED] / 1e9,
        rss=end.rss if end else 0,
        pss=end.pss if end else None,
        rechecked=row[Field.RECHECKED],
        node=control.dealing.node,
    )
