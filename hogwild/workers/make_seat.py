"""Makes the seat of a worker: what its rule finds there, out of the task and the shared state."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hogwild.kernels.kernel import Kernel
from hogwild.model.replica import Binding
from hogwild.optim.stepping import SharedOptimizer
from hogwild.rules.base import Rule
from hogwild.rules.rechecks import Chosen
from hogwild.shared.state import SharedState
from hogwild.workers.account import Account
from hogwild.workers.milestones import Milestones
from hogwild.workers.seat import WorkerSeat
from hogwild.workers.task import Task


def make_seat(
    index: int,
    task: Task,
    state: SharedState,
    replica: nn.Module,
    parameters: Sequence[nn.Parameter],
    rule: Rule,
    account: Account | None,
    order: Sequence[int],
) -> WorkerSeat:
    """The seat of worker `index`.

    Args:
        index: number of the worker, from 0.
        task: what every worker is given. Its rule, which is not attached, is what milestones save.
        state: the worker's view of the shared state.
        replica, parameters: its module, and the trained parameters of that in layout order.
        rule: its copy of the rule.
        account: of the gradients that it computes, where the run is audited.
        order: for each trained parameter in the model's own order, its position in the layout.
    """
    races = task.config.workers > 1 and not rule.exact
    named = list(replica.named_parameters())
    return WorkerSeat(
        index,
        task.config,
        state,
        Binding(replica, parameters, task.plan.buffers),
        SharedOptimizer(task.optimizer, named, parameters, task.optimizer_plan, task.lr_schedule, races=races),
        Milestones(
            state,
            task.rule,
            index,
            evaluate_every=task.evaluate_every,
            traced=task.traced,
            stops=task.stops,
            checkpoint=task.checkpoint,
        ),
        order,
        task.pause,
        shares_gradients=rule.shares_gradients,
        tells_loss=task.tells_loss,
        clippable=not isinstance(task.source, Kernel),
        account=account,
        chosen=_chosen(task, rule, state),
    )


def _chosen(task: Task, rule: Rule, state: SharedState) -> Chosen | None:
    """The tickets whose gradients are computed twice; None where none are."""
    can = rule.combines and (task.loss is not None or task.again is not None)
    if not can or not task.config.recheck:
        return None
    tickets = task.batches // rule.batches_per_ticket
    return Chosen.of(task.config.seed, task.config.recheck, tickets, state.control.dealing)
