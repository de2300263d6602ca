"""This package's rules, trained as `hogwild.train` trains them.

The only difference is that workers wait at a start line, where the alternatives wait too, before they claim their
first update: otherwise the clock would run while the last worker still starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hogwild.bench.work import ContenderError, Measurement, StartLine, StateArrays, Work, judge_states, state_of
from hogwild.config import RunConfig
from hogwild.data.sources import as_source
from hogwild.nodes.party import Party
from hogwild.rules.registry import make_rule, rule_class
from hogwild.run.callback import CallbackList
from hogwild.run.conduct import run_job
from hogwild.run.job import Evaluate, Job
from hogwild.run.result import Run
from hogwild.workers.kinds import warm_up
from hogwild.workers.loop import train_loop
from hogwild.workers.worker import Worker


@dataclass(frozen=True)
class Together:
    """The work of each worker: wait for the others, then train as ever."""

    line: StartLine

    def __call__(self, worker: Worker) -> None:
        """Do it."""
        self.line.wait(worker.index)
        train_loop(worker)


def ours(work: Work, *, rule: str, kind: str, workers: int, options: Mapping[str, Any]) -> Measurement:
    """Train by one of the rules.

    Its options decide the result, so they stay those of the most workers that are measured when there are fewer.
    """
    looks: list[StateArrays] = []

    def look(model: nn.Module) -> dict[str, float]:
        looks.append(state_of(model))
        return {"look": len(looks) - 1}

    together = Together(StartLine(workers))
    run, model = train_rule(work, rule, kind, workers, workers, together, look if work.looks else None, options)
    trained = run.updates * make_rule(rule, run.config).tickets_per_update
    if run.failures or trained != work.batches:
        raise ContenderError(f"trained on {trained} of {work.batches} batches; {'; '.join(run.failures)}")
    initial = [(0.0, state_of(work.problem.model()))] if looks else []
    curve = [(row["seconds"], looks[int(row["look"])]) for row in run.evaluations]
    return Measurement(
        batches=trained,
        samples=run.samples,
        seconds=run.seconds,
        startup_seconds=run.startup_seconds,
        loss=work.problem.judge(model, work.data),
        pss=tuple(usage.pss for usage in run.workers if usage.pss is not None),
        curve=judge_states(work, [*initial, *curve]),
    )


def train_rule(
    work: Work,
    rule_name: str,
    kind: str,
    workers: int,
    allow: int,
    program: Callable[[Worker], None],
    evaluate: Evaluate | None = None,
    options: Mapping[str, Any] | None = None,
    recheck: float = RunConfig.recheck,
    party: Party | None = None,
    average_every: int | None = None,
) -> tuple[Run, nn.Module]:
    """Do the work by that rule; `program` is what every worker does. `options` are the rule's, by default those that
    keep `allow` workers busy; `recheck` is that of `hogwild.train`; `party`: the machines that do it together, or
    apart, where they `average_every` so many updates. Returns the run and the trained model."""
    began = time.monotonic()
    make = rule_class(rule_name)
    options = make.options_for(allow) if options is None else options
    rule = make(**options)
    updates = work.batches // rule.tickets_per_update
    config = RunConfig(
        name=work.problem.name,
        update=rule_name,
        workers=workers,
        kind=kind,
        updates=updates,
        batch_size=work.batch_size,
        seed=work.seed,
        on_worker_failure="raise",
        recheck=recheck,
        average_every=average_every,
        evaluate_every=max(1, updates // work.looks) if work.looks else None,
        **options,
    )
    rule.check(workers)
    warm_up(kind)
    model = work.problem.model()
    job = Job(
        config=config,
        rule=rule,
        model=model,
        optimizer=work.problem.optimizer(work.optimizer, work.batch_size),
        source=as_source(work.data, batch_size=work.batch_size, shuffle=True, seed=work.seed, collate=None),
        loss=work.problem.loss,
        work=program,
        lr_schedule=None,
        evaluate=evaluate,
        callbacks=CallbackList(),
        out=None,
        resume=None,
        party=party,
    )
    return run_job(job, began), model
