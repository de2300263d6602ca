"""The first step of a run: plan it, or refuse it. No memory is shared yet, and no worker runs.

Job → anatomy → optimizer, once, on stand-ins → dry run → second look → layout → what stays sparse → plans → limits
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hogwild.config import AUTO
from hogwild.data.before import DataBefore
from hogwild.errors import ArgumentError, warn_caller
from hogwild.kernels.kernel import Kernel
from hogwild.model.anatomy import Anatomy
from hogwild.model.replica import stand_ins_of
from hogwild.optim.factory import group_of, make_optimizer
from hogwild.optim.kernels import takes_sparse
from hogwild.optim.plan import OptimizerPlan, steps_rows
from hogwild.optim.rates import RateTable, SchedulerFactory, factor_of, tabulated
from hogwild.optim.several import kind_of, optimizers_in
from hogwild.optim.sparse import declared_sparse, held_by, refuse_large, stay_sparse, tables_of
from hogwild.optim.stability import Curvature
from hogwild.rules.registry import names_where, quoted, stepping_by_row
from hogwild.run.audit import why_not
from hogwild.run.job import Job
from hogwild.run.saved.checkpoint import Peek, peek
from hogwild.run.saved.environment import refuse_other_flags
from hogwild.run.saved.origin import Origin, describe, refuse_other_compensation, refuse_other_training
from hogwild.run.saved.record import origin_to_go_on
from hogwild.run.saved.structure import trains_as_evaluated
from hogwild.run.staleness import curvature_of, stale_plan
from hogwild.run.state_dicts import refuse_unsaveable
from hogwild.run.trial.dry_run import DryRun, as_in_a_worker
from hogwild.run.trial.second_look import copies_for_another, look_again
from hogwild.run.trial.try_job import refuse_what_workers_miss, try_job
from hogwild.run.trial.which_kind import with_kind
from hogwild.shared import limits
from hogwild.shared.layout import Layout
from hogwild.shared.state import StatePlan
from hogwild.workers.kinds import TEAMS
from hogwild.workers.surroundings.bit_flags import refuse_thread_settings

_SEALS = 100  # versions whose bits a journal notes, at most about
_FEWEST, _APART = 40, 50  # seals of a run, and versions between two: a seal of a small model takes half a step
_SEALED_BYTES = 4096  # of the model, hashed twice per update on average: about one per cent of a step
_ROOM, _FEW = 4, 1 << 14  # times the rows that the first sparse gradient names, and at least, for those of others


@dataclass(frozen=True)
class Prepared:
    """A run whose parts are known to fit together.

    Attributes:
        job: what is to be done.
        tickets: of the whole run.
        anatomy: the model taken apart; what the optimizer leaves alone is constant.
        optimizer: made once by the caller's factory, on stand-ins for the parameters.
        optimized: those stand-ins that are trained, in layout order.
        sparse: positions of the trained parameters whose gradients stay sparse.
        first_samples: samples in the first batch.
        plan, optimizer_plan: what lies where, and how it is stepped.
        training: what is trained, as plain values. Empty where it is neither recorded nor compared.
        origin: which run it is, and what it trains; None where it is neither saved nor resumed.
        draws: whether the trial step drew from a generator that all code of a process shares; True where there was no
            trial step.
        curvature: of the loss where the run begins, where it is known.
    """

    job: Job
    tickets: int
    anatomy: Anatomy
    optimizer: Optimizer
    optimized: list[nn.Parameter]
    sparse: frozenset[int]
    first_samples: int
    plan: StatePlan
    optimizer_plan: OptimizerPlan
    training: dict[str, Any]
    origin: Origin | None = None
    draws: bool = True
    curvature: Curvature | None = None

    @property
    def run(self) -> str:
        """The identity of the run; empty where it is neither saved nor resumed."""
        return self.origin.run if self.origin is not None else ""

    @property
    def trained(self) -> list[nn.Parameter]:
        """The caller's trained parameters, in layout order."""
        return list(self.anatomy.trained.values())

    @property
    def constant(self) -> list[nn.Parameter]:
        """The caller's parameters that are not trained."""
        return list(self.anatomy.constant.values())


def prepare(job: Job) -> Prepared:
    """Check that the parts of a run fit together, and plan it. Nothing of the caller's is changed.

    Raises:
        ArgumentError: the parts of the job do not fit together, or the machine's limits do not allow it; or a run is
            resumed that trained something else, or under other settings of torch.
        NotReproducible: it draws random numbers that its rule cannot give again, or something of it keeps state that
            each worker would have for itself.
        RunDirectoryError: it is to go on with a directory whose files are not of one run, or of another model's.
    """
    refuse_thread_settings()
    anatomy = Anatomy.of(job.model)
    job = replace(job, data_before=_data_before(job))
    copies = copies_for_another(job)  # before anything of the job has been used
    _check_what_needs_no_step(job)
    stand_ins = stand_ins_of(job.model)  # a factory that ignores its argument is found out
    optimizer = make_optimizer(job.optimizer, [(n, stand_ins[id(p)]) for n, p in job.model.named_parameters()])
    job = _with_rates(job, optimizer)
    numbers = group_of(optimizer)
    groups = {own: numbers[id(other)] for own, other in stand_ins.items() if id(other) in numbers}
    anatomy = anatomy.restricted_to(set(groups))
    tried = try_job(job, anatomy)
    job = with_kind(job, tried, optimizer)
    refuse_what_workers_miss(job, anatomy, tried)
    names = {id(stand_ins[id(p)]): name for name, p in job.model.named_parameters()}
    training = _training(job, optimizer, names, anatomy, tried)
    origin = _origin(job, training)
    if copies is not None:
        with as_in_a_worker(job.intra_op):
            look_again(job, anatomy, copies)
    layout = Layout.of(list(anatomy.trained.items()), [groups[id(p)] for p in anatomy.trained.values()])
    sparse = _sparse(job, _found(job, anatomy, tried, optimizer, layout), layout, optimizer)
    optimized = [stand_ins[id(parameter)] for parameter in anatomy.trained.values()]
    rows = _rows(job, anatomy, sparse)
    curved = curvature_of(job, anatomy, optimizer, optimized, origin) if not rows else None
    optimizer_plan = stale_plan(job, optimizer, optimized, layout, sparse, rows, curved)
    if origin is not None:
        origin = _with_compensation(origin, job, curved, optimizer_plan)
    optimizer_plan = _with_settings(optimizer_plan, job, rows)
    _warn_of_large_steps(job, optimizer, optimizer_plan)
    tables = _kept_once(job, optimizer, layout, sparse, optimizer_plan)
    plan = _plan(job, anatomy, optimizer_plan, rows, tables, tried, job.updates)
    limits.refuse(job.config.workers, own_processes=TEAMS[job.kind].own_processes)
    return Prepared(
        job=job,
        tickets=job.tickets,
        anatomy=anatomy,
        optimizer=optimizer,
        optimized=optimized,
        sparse=sparse,
        first_samples=tried.samples,
        plan=plan,
        optimizer_plan=optimizer_plan,
        training=training,
        origin=origin,
        draws=bool(tried.draws) or job.loss is None,
        curvature=curved,
    )


def _data_before(job: Job) -> DataBefore:
    """The data set as it is now; remembered only where it may have to be sent to processes."""
    return DataBefore(job.source if job.config.kind == AUTO or TEAMS[job.config.kind].own_processes else None)


def _refuse_idle_functions(job: Job) -> None:
    """Refuse a schedule that cannot give the first factor or the last, and what would never be asked or measured."""
    if job.factors is not None and job.updates:
        for update in sorted({0, job.updates - 1}):
            factor_of(job.factors, update)
    if job.callbacks.may_stop and not job.evaluate_every:
        why = "a loop of your own has no epochs" if job.source is None else "the source has no __len__"
        who = job.callbacks.names_of("should_stop")
        raise ArgumentError(f"{who} given, and nothing says when it is to be asked, for {why}; set evaluate_every")
    if job.config.keep_best is not None and job.evaluate is None:
        raise ArgumentError(
            f"keep_best {job.config.keep_best!r} given without evaluate, which alone measures it; give both or none"
        )


def _check_what_needs_no_step(job: Job) -> None:
    """Refusals and warnings that come before the optimizer is made."""
    _refuse_idle_functions(job)
    if trains_as_evaluated(job.model):
        warn_caller("the model is in eval mode, and trains in it; model.train() turns dropout and BatchNorm on")
    if job.out is not None:
        refuse_unsaveable(job.model)
    _warn_of_few_batches(job)


def _warn_of_few_batches(job: Job) -> None:
    """A run of fewer batches than an update averages ends after one update."""
    wanted = job.rule.tickets_per_update * job.rule.batches_per_ticket
    if job.batches < wanted:
        names = ("accumulate",) if job.rule.tickets_per_update == 1 else ("accumulate", "micro_batches")
        told = ", ".join(f"{name} {value}" for name in names if (value := getattr(job.config, name)) > 1)
        warn_caller(
            f"{told}: an update averages {wanted:,} batches, and the whole run has {job.batches:,}, so it makes one "
            f"update; more epochs, or fewer batches to an update, make more"
        )


def _with_rates(job: Job, optimizer: Optimizer) -> Job:
    """The job with the learning rates of its scheduler as a table.

    Raises:
        ArgumentError: rates are to change that the optimizer does not have, or that are not one.
    """
    kind, changes = kind_of(optimizer), bool(job.config.values_of("lr"))
    without = [one for one in optimizers_in(optimizer) if any(group.get("lr") is None for group in one.param_groups)]
    if without and (changes or job.lr_schedule is not None):
        setting = "lr" if changes else "lr_schedule"
        raise ArgumentError(f"{setting} given, and {kind_of(without[0])} has no lr in its groups; leave it out")
    if isinstance(job.lr_schedule, SchedulerFactory):
        job = replace(job, lr_schedule=tabulated(job.lr_schedule, optimizer, job.planned_updates))
    if changes and isinstance(job.lr_schedule, RateTable):
        raise ArgumentError(f"lr cannot be changed: {job.lr_schedule.name} sets it, as it was when the run began")
    if changes and len(rates := sorted({float(group["lr"]) for group in optimizer.param_groups})) > 1:
        raise ArgumentError(
            f"lr cannot be changed: the groups of {kind} have the rates {', '.join(map(str, rates))}; an lr_schedule "
            f"changes them all by a factor"
        )
    return job


def _training(job: Job, optimizer: Optimizer, names: dict[int, str], anatomy: Anatomy, tried: DryRun) -> dict[str, Any]:
    """What it trains, where that is recorded or compared."""
    if job.out is None and job.resume is None and job.party is None:
        return {}
    own = describe(job, optimizer, names, anatomy.trained, tried.batch)
    return own if job.party is None or job.averages is None else {**own, "nodes": job.party.nodes}


def _origin(job: Job, training: dict[str, Any]) -> Origin | None:
    """The identity of the run. A resumed run keeps its own, after a check that it trained the same thing."""
    if job.out is None and job.resume is None:
        return None
    if job.resume is None:
        return Origin.new(job, training)
    saved = origin_to_go_on(job.resume)
    if saved is None:
        return replace(Origin.new(job, training), run="")
    refuse_other_training(saved.training, training, job.resume)
    refuse_other_flags(saved.environment, job.resume)
    return saved


def _with_compensation(origin: Origin, job: Job, curved: Curvature | None, plan: OptimizerPlan) -> Origin:
    """The same, with what is done about stale gradients. A resumed run must do what it did before."""
    changes = plan.compensation.changes if plan.compensation is not None else ()
    if job.resume is not None:
        refuse_other_compensation(origin.compensation, changes, job.resume)
    origin = replace(origin, compensation=changes)
    return origin if curved is None else replace(origin, curvature=curved.largest, curvature_grows=curved.grows)


def _with_settings(plan: OptimizerPlan, job: Job, rows: frozenset[int]) -> OptimizerPlan:
    rates = () if isinstance(job.source, Kernel) else job.config.values_of("lr")  # a kernel steps by itself
    plan = plan.with_rates(rates).with_average(job.config.ema)
    return plan.with_rows(rows) if job.rule.combines else plan


def _found(job: Job, anatomy: Anatomy, tried: DryRun, optimizer: Optimizer, layout: Layout) -> frozenset[int] | None:
    """The positions of the parameters that may get sparse gradients: those that got one in the trial step, and tables
    whose layers ask for them. None where there was no trial step and no layer asks."""
    if job.loss is None:
        return declared_sparse(job.model, optimizer, anatomy.trained, layout, job.sparse)
    tables = tables_of(job.model, list(anatomy.trained.values()))
    return tried.sparse | (tables & held_by(takes_sparse, optimizer, layout))


def _rows(job: Job, anatomy: Anatomy, sparse: frozenset[int]) -> frozenset[int]:
    """The positions of the parameters whose sparse gradients are kept as rows while they wait. Tables whose layers ask
    for sparse gradients are among them, even where the gradient of the trial step was dense."""
    return frozenset() if job.rule.dense_gradients else sparse | tables_of(job.model, list(anatomy.trained.values()))


def _sparse(job: Job, found: frozenset[int] | None, layout: Layout, optimizer: Optimizer) -> frozenset[int]:
    needs = job.rule.needs(job.config.workers)
    if found and job.config.ema is not None:
        names = ", ".join(layout.entries[i].name for i in sorted(found))
        raise ArgumentError(
            f"ema {job.config.ema} averages every row at every update, and {names} has sparse gradients, which step a "
            f"few; leave ema out, or use sparse=False"
        )
    return stay_sparse(
        found,
        layout,
        optimizer,
        job.rule.name,
        copies=needs.slots > 1 and not _keeps_rows(job, optimizer, layout, found),
        shared=job.rule.dense_gradients,
        by_row=lambda: quoted(stepping_by_row(), "and"),
        private=lambda: quoted(names_where(lambda rule: not rule.dense_gradients), "or"),
    )


def _keeps_rows(job: Job, optimizer: Optimizer, layout: Layout, tables: frozenset[int] | None) -> bool:
    """True where each of these tables is kept once, with a log of what its rows held in older versions. `tables` is
    None where it is not known which get sparse gradients; then every parameter is taken for one."""
    every = frozenset(range(len(layout.entries)))
    rows = steps_rows(optimizer, layout, every if tables is None else tables)
    return job.rule.needs(job.config.workers).logs > 0 and rows


def _kept_once(
    job: Job, optimizer: Optimizer, layout: Layout, sparse: frozenset[int], plan: OptimizerPlan
) -> list[int]:
    """The positions of the tables of which one copy is kept.

    Raises:
        ArgumentError: large ones are copied whole, for the step of something else keeps all from being written out.
    """
    if not _keeps_rows(job, optimizer, layout, sparse):
        return []
    if plan.by_row:
        return sorted(sparse)
    whole = [layout.entries[i] for i in sorted(sparse)]
    refuse_large(whole, job.rule.name, shared=False, by_row=lambda: quoted(stepping_by_row(), "and"))
    return []


def _plan(
    job: Job,
    anatomy: Anatomy,
    optimizer: OptimizerPlan,
    rows: frozenset[int],
    tables: list[int],
    tried: DryRun,
    updates: int,
) -> StatePlan:
    config, parameters = job.config, optimizer.form.layout
    before = peek(job.resume) if job.resume is not None else Peek()
    needs = job.rule.needs(config.workers)
    several = job.party is not None and job.averages is None
    if several:  # one machine may be τ updates ahead of another
        needs = replace(needs, gradients=2 * needs.gradients)
    most = _ROOM * job.rule.batches_per_ticket
    return StatePlan(
        workers=config.workers,
        spares=2 * config.workers + before.again + (needs.gradients if several else 0),
        rows=updates,
        digest_every=config.digest_every or before.digest_every or _seal_every(updates, parameters.nbytes),
        parameters=parameters,
        constants=Layout.of(list(anatomy.constant.items())),
        buffers=Layout.of(list(anatomy.buffers.items())),
        names=_names(job.model, anatomy),
        optimizer=replace(optimizer.form, tables=frozenset(tables)),
        needs=needs,
        audited=config.audit and _can_audit(job, optimizer),
        tables=tuple(tables),
        sparse={i: max(_FEW, parameters.entries[i].shape[0], most * tried.rows.get(i, 0)) for i in sorted(rows)},
        shards=optimizer.shards if job.rule.combines else (),
    )


def _can_audit(job: Job, optimizer: OptimizerPlan) -> bool:
    """False, with a warning, where the account of an audit would not hold."""
    config = job.config
    reason = why_not(
        optimizer.form.layout,
        kernel=isinstance(job.source, Kernel),
        compensates=optimizer.compensation is not None,
        plain_sgd=optimizer.plain,
        clips=config.clip_grad_norm is not None,
        skips_sets=config.on_nonfinite == "skip" and job.rule.tickets_per_update > 1,
    )
    if reason is not None:
        warn_caller(f"audit asked for, but {reason}; run.audit will be None")
    return reason is None


def _seal_every(rows: int, nbytes: int) -> int:
    """Versions between two whose bits are noted, so that hashing stays cheap beside training; of a short run of a large
    model none is, but the last, whose digest is that of the run."""
    return max(1, rows // _SEALS, min(rows // _FEWEST, _APART), nbytes // _SEALED_BYTES)


def _names(model: nn.Module, anatomy: Anatomy) -> dict[str, tuple[str, int]]:
    """Each name of the state dict → what it is and its position; tied tensors have several names, and a hook may give a
    tensor another."""
    places = {id(p): ("parameter", i) for i, p in enumerate(anatomy.trained.values())}
    places.update({id(p): ("constant", i) for i, p in enumerate(anatomy.constant.values())})
    places.update({id(b): ("buffer", i) for i, b in enumerate(anatomy.buffers.values())})
    return {name: places[id(value)] for name, value in model.state_dict(keep_vars=True).items() if id(value) in places}


def _warn_of_large_steps(job: Job, optimizer: Optimizer, plan: OptimizerPlan) -> None:
    """An adaptive step that torch makes reads back what other workers may have overwritten meanwhile."""
    if job.rule.exact or job.config.workers == 1 or not plan.adaptive or plan.written is not None:
        return
    under_a_lock = quoted(names_where(lambda rule: rule.exact and not rule.versioned), "or")
    warn_caller(
        f"a step of {kind_of(optimizer)}, as set here, divides by what all workers write at once, and under "
        f"{job.rule.name} a lost write can make a step of any size; update={under_a_lock} cannot"
    )
