"""What every worker of a run is given: the configuration, the plans, the rule, and the caller's functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from hogwild.config import RunConfig
from hogwild.data.sources import Source
from hogwild.kernels.kernel import Kernel
from hogwild.optim.factory import Factory
from hogwild.optim.plan import OptimizerPlan
from hogwild.optim.rates import RateTable
from hogwild.rules.base import Rule
from hogwild.shared.state import StatePlan
from hogwild.workers.milestones import VersionSaver
from hogwild.workers.seat import Pause
from hogwild.workers.surroundings.bit_flags import BitFlags


@dataclass(frozen=True)
class Task:
    """What every worker of a run is given. The parts that are functions may be lambdas and closures.

    Attributes:
        config: settings of the run.
        plan: what lies where in shared memory; `plan.digest_every` is in versions.
        optimizer_plan: how the optimizer's step is made.
        rule: of the run; each worker attaches a copy of it.
        work: the loop; called with the `Worker`.
        source, loss: of the run; None where the loop is the user's own.
        optimizer: the caller's factory, called once in each worker.
        lr_schedule: the factor on learning rates by number of the update, or the rates themselves as a table.
        flags: settings of torch that the worker sets.
        evaluate_every: versions between evaluations; 0 is never.
        traced: versions that are shown to the parent besides.
        stops: an evaluation may end the run, so training waits for it.
        checkpoint: saves versions; None where nothing is saved on the way.
        pause: called at each hook of the protocol; tests plant it.
        loans: how often the thread that trains has lent itself the shared generators.
        draws: the trial step drew from a generator that all code of a process shares, or there was no trial step.
        again: computes a gradient a second time where the loop is the user's own: (worker, ticket, replica) →
            (gradients, loss).
        batches: of the whole run.
        planned_batches: those that it would have without `limit_updates`.
    """

    config: RunConfig
    plan: StatePlan
    optimizer_plan: OptimizerPlan
    rule: Rule
    work: Callable[[Any], None]
    source: Source | None
    loss: Callable[[nn.Module, Any], Any] | None
    optimizer: Factory
    lr_schedule: Callable[[int], float] | RateTable | None
    flags: BitFlags
    evaluate_every: int
    traced: frozenset[int]
    stops: bool
    checkpoint: VersionSaver | None
    pause: Pause | None
    loans: int = 0
    draws: bool = True
    again: Callable[[Any, Any, nn.Module], tuple[Any, float]] | None = None
    batches: int = 0
    planned_batches: int = 0

    @property
    def tells_loss(self) -> bool:
        """Every update tells its loss, so that one that is no number was computed so."""
        return self.loss is not None or isinstance(self.source, Kernel)
