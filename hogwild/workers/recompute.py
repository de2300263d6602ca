"""A gradient is computed a second time, and compared with the first: what one worker does for `hogwild.rules.rechecks`.

Where the first was its own, it computes as another worker would: on a replica that nothing was computed on, with
copies of loss and data as a process of its own would have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from hogwild.errors import NotReproducible
from hogwild.model.replica import Binding
from hogwild.rules.base import Gradient
from hogwild.rules.rechecks import STATE_ADVICE, Rechecks
from hogwild.rules.registry import is_ours
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Hook, Word
from hogwild.workers.own_loop import Writes
from hogwild.workers.task import Task

if TYPE_CHECKING:
    from hogwild.workers.worker import Worker


@dataclass(frozen=True)
class Spare:
    """What another worker would compute with: a task with its own copies, a replica, its trained parameters."""

    task: Task
    replica: nn.Module
    parameters: list[nn.Parameter]


class Recompute:
    """Computes gradients a second time, for one worker.

    Args:
        worker: whose.
        rechecks: which ones.
        make_spare: makes what the worker computes with where the first computation was its own.
    """

    def __init__(self, worker: Worker, rechecks: Rechecks, make_spare: Callable[[], Spare]) -> None:
        self._worker = worker
        self._rechecks = rechecks
        self._make_spare = make_spare
        self._spare: tuple[Task, nn.Module, Binding, Writes] | None = None

    def is_due(self, before: Ticket | None = None) -> bool:
        """True where there is one that this worker can compute now; `before`: the ticket that it has."""
        return self._rechecks.due(before) is not None

    def one(self, before: Ticket | None = None) -> bool:
        """Compute one again, if one is due. False: none is.

        Raises:
            NotReproducible: it is another than the first.
            Aborted: the run has failed elsewhere.
        """
        worker, rechecks = self._worker, self._rechecks
        number = rechecks.take(before)
        if number is None:
            return False
        ticket = worker.rule.deal(number, worker.control[Word.TOTAL])
        gradient = self._compute(ticket, own=rechecks.alone(number))
        worker.control.wait_until(partial(rechecks.can_be_compared, number), worker.index)
        if rechecks.is_there(number):  # and stays until this worker marks it, or lets go
            worker.seat.pause(Hook.COMPARING)
            self._compare(ticket, gradient)
            rechecks.mark(number)
        rechecks.let_go()
        worker.rule.close()  # look whether a version can be made now
        return True

    def stay(self) -> None:
        """Before the worker ends: let others compute again what it computed, and do for them what is due."""
        control = self._worker.control
        while self.one() or self._rechecks.awaited():
            control.wait_until(lambda: self.is_due() or not self._rechecks.awaited(), self._worker.index)

    def _compute(self, ticket: Ticket, *, own: bool) -> Gradient:
        info = self._worker.info
        info.muted = True
        try:
            with torch.enable_grad():
                if not own:
                    return self._worker.compute(ticket)
                with self._as_another():
                    return self._worker.compute(ticket)
        finally:
            info.muted = False

    @contextmanager
    def _as_another(self) -> Iterator[None]:
        """Inside, the worker computes with what another one would have."""
        worker, seat = self._worker, self._worker.seat
        if self._spare is None:
            spare = self._make_spare()
            binding = Binding(spare.replica, spare.parameters, worker.task.plan.buffers)
            writes = Writes(spare.replica, spare.parameters, worker.rule, of_loop=spare.task.loss is None)
            self._spare = spare.task, spare.replica, binding, writes
        own = worker.task, worker.replica, seat.binding, worker.writes
        worker.task, worker.replica, seat.binding, worker.writes = self._spare
        try:
            yield
        finally:
            worker.task, worker.replica, seat.binding, worker.writes = own

    def _compare(self, ticket: Ticket, gradient: Gradient) -> None:
        worker, rule = self._worker, self._worker.rule
        with torch.no_grad():
            found = rule.compare(ticket, gradient)
        if found is None:
            return
        first, numbers = rule.worker_of(ticket), worker.control.numbers
        me = numbers[worker.index]
        suspects = f"{'' if is_ours(rule) else 'the rule, '}the model, the loss or the data"
        apart = "" if first in numbers else ", on another machine, where the loss or the data may not be the same"
        raise NotReproducible(
            f"update {ticket.update} (batch {ticket.batch}): the {found} is another when worker {me} computes it again "
            f"after worker {first}{apart}, so {rule.name} cannot give the same bits; {suspects} keeps something from "
            f"call to call, or a memory or a processor is at fault; {STATE_ADVICE}"
        )
