"""What a run does about gradients that are τ updates old: the curvature that tells how far it may step, the plan of the
optimizer for it, and who is warned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from hogwild.errors import warn_caller
from hogwild.model.anatomy import Anatomy
from hogwild.optim.compensation import Compensation
from hogwild.optim.factory import group_of
from hogwild.optim.kernels import written_step
from hogwild.optim.plan import OptimizerPlan
from hogwild.optim.rates import RateTable, factor_of
from hogwild.optim.several import kind_of
from hogwild.optim.stability import Curvature, is_safe_step, largest_stable_step
from hogwild.run.job import Job
from hogwild.run.saved.origin import Origin
from hogwild.run.trial.curvature import curvature
from hogwild.run.trial.dry_run import as_in_a_worker
from hogwild.shared.layout import Layout

CURVATURE, CURVATURE_GROWS = "curvature", "what curvature grows to"  # what machines that train together compare as
_ADAM = (torch.optim.Adam, torch.optim.AdamW)
_LOOKS = 10_000  # updates at most whose factors a schedule is asked for, to know its largest
_LONG = 500  # updates of a run that are worth the twenty gradients of a curvature that is only warned of
_BEARS = 20  # lr × curvature × (τ + 1), up to which Adam seldom learns worse
_STALE = 3  # staleness from which on Adam, and momentum where no curvature is known, may keep a model from learning


def curvature_of(
    job: Job, anatomy: Anatomy, optimizer: Optimizer, optimized: Sequence[nn.Parameter], origin: Origin | None
) -> Curvature | None:
    """Of the loss where the run begins, or began; None where it is not known, or nobody asks for it. `optimized`: those
    of the optimizer, in the anatomy's order."""
    made_up_for = job.rule.made_up_for(job.config.workers).updates
    staleness = job.rule.staleness or made_up_for
    if not staleness or type(optimizer) not in (torch.optim.SGD, *_ADAM):
        return None
    known = written_step(optimizer) is not None and Compensation.of(optimizer, staleness) is not None
    if job.updates < _LONG and not (known and made_up_for):
        return None
    if origin is not None and job.resume is not None:
        return None if origin.curvature is None else Curvature(origin.curvature, origin.curvature_grows)
    if job.party is not None and job.party.returns:  # whose initial values do not matter
        told = job.party.hear("facts", 0)
        largest, grows = told[CURVATURE], told[CURVATURE_GROWS]
        return None if largest is None else Curvature(float(largest), int(grows))
    with as_in_a_worker(job.intra_op):
        return curvature(job, anatomy, _eps(optimizer, optimized))


def _eps(optimizer: Optimizer, optimized: Sequence[nn.Parameter]) -> list[float] | None:
    """Adam's of each parameter; None for SGD."""
    if type(optimizer) not in _ADAM:
        return None
    groups = group_of(optimizer)
    return [float(optimizer.param_groups[groups[id(parameter)]]["eps"]) for parameter in optimized]


def stale_plan(
    job: Job,
    optimizer: Optimizer,
    optimized: Sequence[nn.Parameter],
    layout: Layout,
    sparse: frozenset[int],
    rows: frozenset[int],
    curved: Curvature | None,
) -> OptimizerPlan:
    """The plan of an optimizer, with what is done about staleness, unless there are `rows`, parameters whose gradients
    may be sparse; with a warning where that may not be enough."""
    rule, staleness = job.rule, job.rule.staleness or 0
    asked = rule.made_up_for(job.config.workers)
    rates = _largest_rates(job, optimizer) if staleness or asked.updates else []  # else nobody asks for them
    made_up_for = 0 if rows else asked.updates
    plan = OptimizerPlan.under_staleness(
        optimizer, optimized, layout, sparse, made_up_for, curved, rates, varies=asked.varies
    )
    if staleness and plan.compensation is None:
        written = plan.written is not None  # of any other step nobody has studied what would help
        known = not asked.updates and written and Compensation.of(optimizer, staleness) is not None
        _warn_of_what_is_left(job, optimizer, staleness, curved.largest if curved else None, rates, known)
    return plan


def _largest_rates(job: Job, optimizer: Optimizer) -> list[float]:
    """Of each group, by a table of learning rates, or its own by a schedule's largest factor."""
    table, rates = job.lr_schedule, [float(group.get("lr") or 0.0) for group in optimizer.param_groups]
    if isinstance(table, RateTable):
        return [max(column) for column in zip(*map(table.at, range(job.planned_updates)), strict=True)]
    updates = job.planned_updates
    if job.factors is None or not updates:
        return rates
    looks = range(0, updates, -(-updates // _LOOKS))
    largest = max(factor_of(job.factors, update) for update in looks)
    return [largest * rate for rate in rates]


def _warn_of_what_is_left(
    job: Job, optimizer: Optimizer, staleness: int, curved: float | None, rates: Sequence[float], known: bool
) -> None:
    """Say so where steps by gradients that old are likely to go wrong; `known`: something would make up for it."""
    name = kind_of(optimizer)
    helps = "compensation='auto' makes up for it, or " if known else ""
    groups = list(zip(optimizer.param_groups, rates, strict=True))
    if curved is not None and type(optimizer) in _ADAM:
        rate = max(rates)
        if rate * curved * (staleness + 1) > _BEARS:
            warn_caller(
                f"staleness {staleness} with {name} is likely to learn worse: the loss begins with a curvature of "
                f"{curved:.3g} in units of its steps, which times lr {rate:g} times τ + 1 is "
                f"{rate * curved * (staleness + 1):.2g}, and up to {_BEARS} is borne; {helps}lower the learning rate"
            )
    elif curved is not None and not _settles(job.model):
        own = [(rate, float(group["momentum"]), group["nesterov"]) for group, rate in groups]
        unsafe = [one for one in own if not is_safe_step(one[0] * curved, staleness, *one[1:])]
        for rate, *momentum in unsafe[:1]:
            limit = largest_stable_step(staleness, *momentum)
            warn_caller(
                f"staleness {staleness} with {name} is likely to learn worse, or to diverge: the loss begins with a "
                f"curvature of {curved:.3g}, which times lr {rate:g} is {rate * curved:.2g}, and by gradients that old "
                f"{limit:.2g} is just stable; {helps}lower the learning rate or the momentum"
            )
    elif staleness >= _STALE and any(group.get("momentum") or "betas" in group for group, _ in groups):
        warn_caller(
            f"staleness {staleness} with {name} and its momentum may not learn; {helps}lower the momentum or the "
            f"learning rate (`hogwild run staleness` compares)"
        )


def _settles(model: nn.Module) -> bool:
    """With BatchNorm a loss is much less curved soon, so that what is measured at first says little of SGD."""
    return any(isinstance(module, _NormBase) for module in model.modules())
