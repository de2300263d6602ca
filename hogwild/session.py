"""One run from its arguments to its result: lay out memory, start workers, supervise, gather.

    Job → Anatomy → trial step → StatePlan → SharedState → Team → Supervisor → Run

Only this module knows that there is one machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hogwild import limits
from hogwild.audit import Audit, settle, why_not
from hogwild.checkpoint import Checkpointer, Start, clear_staging, left_undone, restore
from hogwild.config import RunConfig
from hogwild.control import Field, Word
from hogwild.errors import ArgumentError, NotReproducible
from hogwild.hashing import digest_bytes
from hogwild.memory import Layout
from hogwild.optimizer_state import Factory, OptimizerPlan, group_of, initial_of, make_optimizer, steps_rows
from hogwild.replica import Anatomy, stand_ins_of
from hogwild.rules import Ordered, Rule
from hogwild.run import Progress, Run, Staleness, Stop, WorkerUsage, begin_directory
from hogwild.schedule import DatasetSource, Source, TensorSource, tickets_of
from hogwild.seeding import BitFlags
from hogwild.sparse import stay_sparse
from hogwild.state import SharedState, StatePlan
from hogwild.trial import Trial, try_step
from hogwild.watcher import Trace, Watcher
from hogwild.workers.events import Team
from hogwild.workers.loop import Task, Worker, planted
from hogwild.workers.processes import ProcessTeam
from hogwild.workers.supervisor import Policy, Supervisor
from hogwild.workers.threads import ThreadTeam

Loss = Callable[[nn.Module, Any], Any]
Evaluate = Callable[[nn.Module], dict[str, float]]

_DECIDE_BITS = (
    "update",
    "staleness",
    "micro_batches",
    "gradient",
    "epochs",
    "updates",
    "batch_size",
    "shuffle",
    "seed",
    "clip_grad_norm",
    "on_nonfinite",
)
_SEALS = 100  # versions whose bits a journal notes, at most about
_FEWEST, _APART = 40, 50  # seals of a run, and versions between two: a seal of a small model takes half a step
_SEALED_BYTES = 8192  # of the model, hashed per update on average: one to two per cent of a step


@dataclass(frozen=True)
class Job:
    """What is to be done: the arguments of `train` or `launch`, checked one by one but not yet together."""

    config: RunConfig
    rule: Rule
    model: nn.Module
    optimizer: Factory
    source: Source | None
    loss: Loss | None
    work: Callable[[Worker], None]
    lr_schedule: Callable[[int], float] | None
    evaluate: Evaluate | None
    stop: Stop | None
    progress: Callable[[Progress], None] | None
    out: Path | None
    resume: Path | None
    trace: Trace | None = None
    intra_op: int = 1

    @property
    def epoch_tickets(self) -> int:
        """Tickets of an epoch (batches, or micro-batches under `sync`); 0 where there are no epochs."""
        length = getattr(self.source, "__len__", None)
        return int(length()) if length is not None else 0

    @property
    def tickets(self) -> int:
        """Tickets of the whole run.

        Raises:
            ArgumentError: epochs are given, and the source does not say how long one is.
        """
        epochs, updates = self.config.epochs, self.config.updates
        return tickets_of(self.source, epochs=epochs, updates=updates, per_update=self.rule.tickets_per_update)

    def updates_in(self, tickets: int) -> int:
        """Updates made of so many tickets."""
        return -(-tickets // self.rule.tickets_per_update)

    def samples_between(self, first: int, last: int, first_batch: int) -> int:
        """Samples that updates `first` to `last` − 1 train on; `first_batch` is the size of a batch, for sources that
        do not say."""
        return self._samples_before(last, first_batch) - self._samples_before(first, first_batch)

    def _samples_before(self, update: int, first_batch: int) -> int:
        tickets = min(update * self.rule.tickets_per_update, self.tickets)
        if isinstance(self.source, TensorSource | DatasetSource):
            schedule = self.source.schedule
            epochs, rest = divmod(tickets, len(schedule))
            return epochs * schedule.samples + min(rest * schedule.batch_size, schedule.samples)
        return tickets * first_batch


class Session:
    """A run being made.

    Args:
        job: what to do.
        began: CLOCK_MONOTONIC seconds when the caller asked for it.

    Raises:
        ArgumentError: the parts of the job do not fit together, or the memory does not suffice.
    """

    def __init__(self, job: Job, began: float) -> None:
        self.job = job
        self._began = began
        self._tickets = job.tickets
        anatomy = Anatomy.of(job.model)
        stand_ins = stand_ins_of(job.model)  # a factory that ignores its argument is found out
        prototype = make_optimizer(job.optimizer, [(n, stand_ins[id(p)]) for n, p in job.model.named_parameters()])
        numbers = group_of(prototype)
        groups = {own: numbers[id(other)] for own, other in stand_ins.items() if id(other) in numbers}
        anatomy = anatomy.restricted_to(set(groups))
        self._optimized = [stand_ins[id(parameter)] for parameter in anatomy.trained.values()]
        self._trained, self._constant = list(anatomy.trained.values()), list(anatomy.constant.values())
        self._trial = self._try()
        _warn_of_staleness(job.rule, prototype)
        layout = Layout.of(list(anatomy.trained.items()), [groups[id(p)] for p in self._trained])
        sparse = self._sparse(layout, prototype)
        tables = sorted(sparse) if steps_rows(prototype) else []
        plan = self._plan(anatomy, layout, OptimizerPlan.of(prototype, self._optimized, layout, sparse), tables)
        limits.refuse(job.config.workers, job.config.kind)
        self._state = SharedState.create(plan)
        initial = initial_of(prototype, self._optimized, sparse)
        self._state.prepare(self._trained, self._constant, list(anatomy.buffers.values()), initial)
        start = self._resume(job.resume) if job.resume else Start(0, 0, (), self._tickets)
        self._first = start.version
        self._state.control.prepare(start.following, min(start.total, self._tickets), start.again)
        job.rule.begin(self._state.control, self._first)
        self._initial = self._parameters() if plan.audited else []
        self._samples = partial(job.samples_between, self._first, first_batch=self._trial.samples)
        self._watcher = Watcher(
            job.model,
            self._state,
            job.rule,
            job.evaluate,
            job.stop,
            job.progress,
            self._samples,
            self._evaluate_every(),
            job.trace,
        )
        self._team = self._make_team(plan)

    def run(self) -> Run:
        """Train. The model holds the newest version when this returns or raises.

        Raises:
            WorkerError, NonFiniteError, NotReproducible: see `hogwild.train`.
        """
        config, out = self.job.config, self.job.out
        if out is not None:
            begin_directory(out, config)
            clear_staging(out)
        policy = Policy(config.on_worker_failure, config.max_restarts, config.worker_timeout)
        shows = self._evaluate_every() > 0 or self.job.trace is not None
        asks = self.job.stop is not None
        supervisor = Supervisor(
            self._team, self._state, self.job.rule, policy, self._watcher.look, shows=shows, asks=asks
        )
        try:
            supervisor.supervise()
            self._watcher.take_newest()
            self._watcher.evaluate_newest()
        except (KeyboardInterrupt, SystemExit):
            self._watcher.take_newest()
            if out is not None:
                self._result(supervisor, "interrupted", out).save(out)
                version, slot = self.job.rule.newest(self._state)
                Checkpointer(out, 1).save(self._state, self.job.rule, version, slot)
            raise
        except BaseException:
            self._watcher.take_newest()
            raise
        self._watcher.take_newest()  # an evaluation in training mode moves running averages
        stopped = "stop" if self._state.control[Word.TOTAL] < self._tickets else None
        run = self._result(supervisor, stopped, out)
        if out is not None:
            run.save(out)
        return run

    def _resume(self, directory: Path) -> Start:
        """Go on from the directory's checkpoint.

        Raises:
            ArgumentError: the run there was made with another setting that decides bits.
        """
        saved, config = RunConfig.load(directory / "config.toml"), self.job.config
        for name in _DECIDE_BITS:
            if getattr(saved, name) != getattr(config, name):
                raise ArgumentError(
                    f"{name} is {getattr(config, name)!r}, and the run in {directory} was made with "
                    f"{getattr(saved, name)!r}; a resumed run needs the same"
                )
        return restore(directory, self._state, self.job.rule)

    def _try(self) -> Trial:
        job = self.job
        if job.source is None or job.loss is None:
            return Trial(frozenset(), 1, ())
        trial = try_step(job.model, self._trained, job.source, job.loss, job.config.seed, job.config.workers)
        if trial.written and job.rule.needs(job.config.workers).slots > 1:
            raise ArgumentError(
                f"the loss writes to {', '.join(trial.written)} while it is computed, as an embedding with max_norm "
                f"does, and {job.rule.name} keeps a version as it was made; use update='hogwild' or 'locked'"
            )
        if trial.draws and job.config.kind == "threads" and job.rule.same_bits:
            raise NotReproducible(
                f"the training draws random numbers in {'; '.join(trial.draws)}, which all threads share, so "
                f"{job.rule.name} cannot give the same bits; use kind='processes', or hogwild.worker_info().generator"
            )
        return trial

    def _sparse(self, layout: Layout, prototype: Optimizer) -> frozenset[int]:
        rule, needs = self.job.rule, self.job.rule.needs(self.job.config.workers)
        found = None if self.job.loss is None else self._trial.sparse
        return stay_sparse(found, layout, prototype, rule.name, versions=needs.slots > 1, shared=needs.gradients > 0)

    def _plan(self, anatomy: Anatomy, parameters: Layout, optimizer: OptimizerPlan, tables: list[int]) -> StatePlan:
        rows = self.job.updates_in(self._tickets)
        config = self.job.config
        return StatePlan(
            workers=config.workers,
            spares=2 * config.workers + (left_undone(self.job.resume) if self.job.resume else 0),
            rows=rows,
            digest_every=config.digest_every or _seal_every(rows, parameters.nbytes),
            parameters=parameters,
            constants=Layout.of(list(anatomy.constant.items())),
            buffers=Layout.of(list(anatomy.buffers.items())),
            names=_names(self.job.model, anatomy),
            optimizer=optimizer,
            needs=self.job.rule.needs(config.workers),
            audited=config.audit and self._can_audit(parameters, optimizer),
            tables=tuple(tables),
        )

    def _can_audit(self, parameters: Layout, optimizer: OptimizerPlan) -> bool:
        """False, with a warning, where the account of an audit would not hold."""
        config = self.job.config
        reason = why_not(
            parameters,
            plain_sgd=optimizer.plain,
            clips=config.clip_grad_norm is not None,
            skips_sets=config.on_nonfinite == "skip" and self.job.rule.tickets_per_update > 1,
        )
        if reason is not None:
            warnings.warn(f"audit asked for, but {reason}; run.audit will be None", stacklevel=6)
        return reason is None

    def _make_team(self, plan: StatePlan) -> Team:
        job, config = self.job, self.job.config
        task = Task(
            plan=plan,
            rule=job.rule,
            work=job.work,
            source=job.source,
            loss=job.loss,
            optimizer=job.optimizer,
            lr_schedule=job.lr_schedule,
            clip_grad_norm=config.clip_grad_norm,
            on_nonfinite=config.on_nonfinite,
            seed=config.seed,
            flags=replace(BitFlags.capture(), intra_op=job.intra_op),
            evaluate_every=self._evaluate_every(),
            traced=job.trace.at if job.trace is not None else frozenset(),
            stops=job.stop is not None,
            checkpoint=Checkpointer(job.out, config.checkpoint_every) if job.out and config.checkpoint_every else None,
            pause=planted.get(),
        )
        kind = ProcessTeam if config.kind == "processes" else ThreadTeam
        return kind(task, self._state, job.model, self._trained, self._constant)

    def _evaluate_every(self) -> int:
        """Updates between evaluations; 0 where nothing is to be evaluated on the way."""
        if self.job.evaluate is None and self.job.stop is None:
            return 0
        return self.job.config.evaluate_every or self.job.updates_in(self.job.epoch_tickets)

    def _result(self, supervisor: Supervisor, stopped: str | None, out: Path | None) -> Run:
        state, outcome, rule = self._state, supervisor.outcome, self.job.rule
        version, _ = rule.newest(state)
        first, last = self._watcher.span()
        model_state = {name: value.detach().clone() for name, value in _tensors(self.job.model).items()}
        journal = state.journal.rows(version if rule.replayable else None)
        return Run(
            config=self.job.config,
            state=model_state,
            digest=digest_bytes(model_state).hex(),
            updates=version,
            samples=self._samples(version),
            seconds=last - first,
            startup_seconds=first - self._began,
            journal=journal,
            seals=state.journal.seals(version) if rule.replayable else {},
            evaluations=tuple(self._watcher.evaluations),
            logged=tuple(
                {"update": logged.update, "batch": logged.batch, "worker": logged.worker, **logged.metrics}
                for logged in outcome.logged
            ),
            workers=tuple(self._usage(index, supervisor) for index in range(state.control.workers)),
            staleness=Staleness.of(journal, rule.staleness if isinstance(rule, Ordered) else None),
            failures=tuple(map(str, outcome.failures)),
            in_doubt=tuple(outcome.in_doubt),
            stopped=stopped,
            audit=self._audit(supervisor),
            out=out,
        )

    def _parameters(self) -> list[torch.Tensor]:
        """The parameters of the newest version, in memory of their own."""
        _, slot = self.job.rule.newest(self._state)
        return [parameter.clone() for parameter in self._state.slots[slot].parameters]

    def _audit(self, supervisor: Supervisor) -> Audit | None:
        """The closed account; None where none was kept, or a worker died or was stopped with its own."""
        totals, plan = self._state.audit, self._state.plan
        if totals is None or totals.reported < plan.workers or supervisor.outcome.failures:
            return None
        return settle(plan.parameters, totals, self._initial, self._parameters())

    def _usage(self, index: int, supervisor: Supervisor) -> WorkerUsage:
        row = self._state.control.row(index)
        end = supervisor.outcome.finished.get(index)
        return WorkerUsage(
            worker=index,
            computed=row[Field.COMPUTED],
            skipped=row[Field.SKIPPED],
            cpu_seconds=end.cpu_seconds if end else float("nan"),
            waited_seconds=row[Field.WAITED] / 1e9,
            rss=end.rss if end else 0,
            pss=end.pss if end else None,
        )


def _seal_every(rows: int, nbytes: int) -> int:
    """Versions between two whose bits are noted, so that hashing stays cheap beside training."""
    return max(1, rows // _SEALS, min(rows // _FEWEST, _APART), min(rows, nbytes // _SEALED_BYTES))


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def _names(model: nn.Module, anatomy: Anatomy) -> dict[str, tuple[str, int]]:
    """Each name of the state dict → what it is and its position; tied tensors have several names."""
    places = {id(p): ("parameter", i) for i, p in enumerate(anatomy.trained.values())}
    places.update({id(p): ("constant", i) for i, p in enumerate(anatomy.constant.values())})
    places.update({id(b): ("buffer", i) for i, b in enumerate(anatomy.buffers.values())})
    kept = _tensors(model).keys()
    members = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: places[id(tensor)] for name, tensor in members if name in kept}


def _warn_of_staleness(rule: Rule, optimizer: Optimizer) -> None:
    """Asynchrony acts as momentum (Mitliagkas et al. 2016); on top of momentum it can keep a model from learning."""
    if not isinstance(rule, Ordered) or rule.staleness < 3:
        return
    momentum = any(group.get("momentum") or "betas" in group for group in optimizer.param_groups)
    if momentum:
        warnings.warn(
            f"staleness {rule.staleness} with {type(optimizer).__name__} and its momentum may not learn; lower the "
            f"momentum or the learning rate, or compare with `hogwild run staleness`",
            stacklevel=4,
        )
