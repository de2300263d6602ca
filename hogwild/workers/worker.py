"""One worker, thread or process: the calls that a loop is written in, ours or a user's.

    claim → read → batch and gradient → commit → claim …

A worker waits only in `claim` (for the version it is to read) and in `commit` (for its turn). In both it hands its
ticket back when a worker died and left an earlier ticket that nobody has taken: somebody must compute that one first.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.data.sources import DatasetSource, TensorSource
from hogwild.errors import ArgumentError, HogwildError, NotReproducible
from hogwild.model.row_parameter import rows_at
from hogwild.rules.base import Gradient
from hogwild.rules.gradients import parts_of
from hogwild.rules.registry import is_ours
from hogwild.rules.row_gradients import rows_of_parameter
from hogwild.shared.state import SharedState
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Field, Hook, Word
from hogwild.workers.account import Account
from hogwild.workers.make_seat import make_seat
from hogwild.workers.own_loop import (
    NOT_GIVEN,
    LossTold,
    Mistakes,
    OfLoop,
    OwnGradients,
    Unheard,
    Writes,
    as_ticket,
    loss_of,
    refuse_ticket,
)
from hogwild.workers.recompute import Recompute, Spare
from hogwild.workers.surroundings.no_grad import WithoutGrad
from hogwild.workers.surroundings.own_generators import OwnGenerators
from hogwild.workers.surroundings.scripted import scripts_as_written
from hogwild.workers.surroundings.shared_generator import SharedGenerators
from hogwild.workers.task import Task
from hogwild.workers.worker_info import Log, WorkerInfo, informed

_UNUSED = torch.Generator()
_UNSEEDED = (TensorSource, DatasetSource)  # our own leave the generator alone


class Worker:
    """One worker, as the loop and a user's own `work(worker)` see it.

    Attributes:
        index: number of the worker, from 0.
        replica: its module.
        info: the `WorkerInfo` of this worker.
    """

    def __init__(
        self,
        index: int,
        task: Task,
        state: SharedState,
        replica: nn.Module,
        parameters: Sequence[nn.Parameter],
        *,
        owns_process: bool,
        log: Log,
        make_spare: Callable[[], Spare],
    ) -> None:
        self.index = index
        self.task = task
        self.control = state.control
        self.control.announce_waits(index)
        self.replica = replica
        self.info = WorkerInfo(index, task.config.workers, task.config.seed, log)
        self.rule = copy.deepcopy(task.rule)
        self._state = state
        self._read: Ticket | None = None
        self._row = self.control.row(index)
        self._quietly = WithoutGrad()
        self._account = Account(task.plan.parameters) if task.plan.audited else None
        shares = self.rule.same_bits and not owns_process and task.loss is not None
        self._generators = SharedGenerators(state.control, index, self.rule.name, task.loans) if shares else None
        self._own_generators = OwnGenerators(lazy=self._draws_in_gradients_alone()) if owns_process else None
        trained = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._order = [trained[id(p)] for p in replica.parameters() if id(p) in trained]
        self._own_gradients = OwnGradients(task.plan, self.rule, parameters, self._order)
        self._mistakes = Mistakes()
        self.writes = Writes(replica, parameters, self.rule, state.control, of_loop=task.loss is None)
        self.seat = make_seat(index, task, state, replica, parameters, self.rule, self._account, self._order)
        self.rule.attach(self.seat)
        rechecks = self.rule.rechecks
        self._recompute = Recompute(self, rechecks, make_spare) if rechecks is not None else None

    def run(self) -> None:
        """Do the task's work until there are no more tickets, and let go of the shared memory."""
        try:
            with informed(self.info), scripts_as_written():
                self.task.work(self)
                self._mistakes.refuse_left(self._row[Field.TICKET])
                self.writes.end()
            self.control.leave(self.index)
            if self._generators is not None:
                self._generators.moved(self.info.update)  # the last commit, too, may have drawn
            self._report()
        except Unheard as unheard:
            raise unheard.error from None
        finally:
            self._row[Field.PRESENT] = 0
            self._recompute, self._mistakes = None, Mistakes()  # which refer back
            self.rule.detach()
            if self._own_generators is not None:
                self._own_generators.close()

    def _draws_in_gradients_alone(self) -> bool:
        """True where no code of the user's runs outside of `gradient`, in data, rule, schedule or optimizer, and the
        trial step drew nothing. Then generators are seeded once something draws, and that gradient is computed anew."""
        task = self.task
        ours = type(task.source) in _UNSEEDED and is_ours(self.rule)
        steps = task.lr_schedule is None and task.optimizer_plan.written is not None
        return ours and steps and task.loss is not None and not task.draws and not self.rule.shares_gradients

    # --- the calls that a loop is written in

    def claim(self, ahead: Callable[[Ticket], object] | None = None) -> Ticket | None:
        """A ticket that this worker is to compute; returned once the version that it reads exists. None: no more come.

        A ticket is an int, its own number, and knows its update and its batch.

        Args:
            ahead: called with a ticket that has to wait, to prepare what needs no version; another may get that ticket.
        """
        graded = torch.is_grad_enabled()  # without a `with`, whose calls cost five times what is called here
        torch._C._set_grad_enabled(False)
        try:
            return self._claim(ahead)
        except ArgumentError as error:
            told = self._mistakes.of_claim(self._row[Field.TICKET], error)
            if told is error:
                raise
            raise told from None
        finally:
            torch._C._set_grad_enabled(graded)

    def _claim(self, ahead: Callable[[Ticket], object] | None) -> Ticket | None:
        rule, control, row, pause, recompute = self.rule, self.control, self._row, self.seat.pause, self._recompute
        while True:
            while recompute is not None and recompute.one():
                pass
            pause(Hook.CLAIMING)
            number = control.claim(self.index, pause)
            if number is None:
                if self._waits_for_more():
                    continue
                self._close()
                return None
            ticket = rule.deal(number, control[Word.TOTAL])
            if not row[Field.STARTED]:
                row[Field.STARTED] = time.monotonic_ns()
            pause(Hook.CLAIMED)
            ready = rule.ready(ticket)
            if not ready:
                if ahead is not None:
                    self._begin(ticket.update, ticket.batch)
                    ahead(ticket)
                self._wait_for(ticket)
                ready = rule.ready(ticket)
            if ready and number < control[Word.TOTAL]:  # a version may have ended the run
                self._begin(ticket.update, ticket.batch)
                return ticket
            self._leave(number)

    def _wait_for(self, ticket: Ticket) -> None:
        """Wait until the ticket may start. Meanwhile compute a second time what is due."""
        recompute, version = self._recompute, self.rule.awaits(ticket)
        if recompute is None:
            self.control.wait_until(partial(self._may_start, ticket), self.index, version)
            return
        while not self._may_start(ticket):
            go_on = partial(self._may_go_on, ticket, recompute)
            self.control.wait_until(go_on, self.index, version)
            recompute.one(before=ticket)

    def _may_go_on(self, ticket: Ticket, recompute: Recompute) -> bool:
        return self._may_start(ticket) or recompute.is_due(before=ticket)

    def _waits_for_more(self) -> bool:
        """There are no tickets now. True once there may be more, or gradients to compute again; False at the end."""
        if not self.rule.over():
            self.control.wait_until(self._has_more_or_is_over, self.index)
        return not self.rule.over()

    def _has_more_or_is_over(self) -> bool:
        again = self._recompute is not None and self._recompute.is_due()
        return again or self.control.orphan_before(self.control[Word.TOTAL]) or self.rule.over()

    def _close(self) -> None:
        """Called when there are no more tickets: compute again what is left of that, and close the rule."""
        if self._recompute is not None:
            self._recompute.stay()
            self._row[Field.PRESENT] = 0
        self.rule.close()

    def _may_start(self, ticket: Ticket) -> bool:
        control, number = self.control, ticket.number
        return self.rule.ready(ticket) or number >= control[Word.TOTAL] or control.orphan_before(number)

    def _leave(self, number: int) -> None:
        """Give up a ticket that cannot start, because an earlier one has no owner or because the run ends before it."""
        if number >= self.control[Word.TOTAL]:
            self.control.finish(self.index)
        else:
            self.control.hand_back(self.index)

    def _begin(self, update: int, batch: int) -> None:
        number = self.info.start(update, batch)
        if self._own_generators is not None:
            self._own_generators.begin(number)

    def read(self, ticket: Ticket = NOT_GIVEN) -> nn.Module:
        """The replica, at the version that this ticket's gradient is to be computed on."""
        again = ticket is self._read
        self._read = as_ticket(ticket)
        replica = self.rule.read(ticket)
        self.writes.begin(ticket.update, again=again)
        return replica

    def rows(self, ticket: Ticket, name: str, rows: Any) -> Tensor:
        """Rows of a trained parameter, (n, …), at the version that this ticket's gradient is to be computed on; a copy.

        Args:
            ticket: that is this worker's.
            name: of the parameter, as `model.named_parameters()` has it.
            rows: their numbers, int64 of shape (n,), a tensor or an array; one may come twice.

        Raises:
            ArgumentError: no trained parameter has that name, or a row is none of its.
        """
        plan = self.task.plan
        i, rows = rows_of_parameter(name, rows, plan.trained_names, plan.parameters.entries)
        if self._read is not ticket:
            self.read(ticket)
        with self._quietly:
            return rows_at(self.seat.binding.parameters[i], rows)

    def batch(self, ticket: Ticket) -> Any:
        """The batch of that ticket; of several, the first."""
        return self._batch(ticket.batch)

    def _batch(self, number: int) -> Any:
        source = self.task.source
        if source is None:
            raise ArgumentError("launch() has no data to make batches of; make them in work(worker), or call train()")
        return source.batch(number, _UNUSED if type(source) in _UNSEEDED else self.info.generator)

    def gradient(self, ticket: Ticket, replica: nn.Module) -> Gradient:
        """The gradient of the task's loss on the batch of that ticket, or on its batches."""
        own, shared = self._own_generators, self._generators
        is_void = own.drew_unseeded if own is not None and own.lazy else None
        if shared is not None:
            is_void = partial(shared.moved, ticket.update)
        gradient = self._gradient_unless(is_void, ticket, replica) if is_void else self._gradient(ticket, replica)
        if gradient is not None:
            return gradient
        self._begin(ticket.update, ticket.batch)
        return self.gradient(ticket, self.read(ticket))

    def compute(self, ticket: Ticket) -> Gradient:
        """The gradient of that ticket, computed a second time as the loop computes it."""
        self._begin(ticket.update, ticket.batch)
        replica, again = self.read(ticket), self.task.again
        if again is None:
            return self.gradient(ticket, replica)
        gradients, loss = again(self, ticket, replica)
        return self._taken(gradients, loss)

    def _gradient(self, ticket: Ticket, replica: nn.Module) -> Gradient:
        loss = self.task.loss
        if loss is None:
            raise ArgumentError("launch() has no loss; compute the gradient in work(worker), or call train()")
        if self.rule.batches_per_ticket > 1:
            return self.rule.gradient(partial(self._losses, loss, ticket), replica)
        batch = self.batch(ticket)
        self.seat.pause(Hook.COMPUTING)
        return self.rule.gradient(lambda module: loss(module, batch), replica)

    def _losses(
        self, loss: Callable[[nn.Module, Any], Any], ticket: Ticket, module: nn.Module
    ) -> Generator[Any, None, None]:
        """The losses of a ticket's batches, one batch after the other, each with the draws that are its own."""
        end = min(ticket.batch + self.rule.batches_per_ticket, self.task.planned_batches)
        for number in range(ticket.batch, end):
            self._begin(ticket.update, number)
            self.seat.pause(Hook.COMPUTING)
            yield from parts_of(loss(module, self._batch(number)))

    def _gradient_unless(self, is_void: Callable[[], bool], ticket: Ticket, replica: nn.Module) -> Gradient | None:
        """The gradient; None where `is_void` says that it drew numbers that were not its own. What that logged and what
        it raised is dropped."""
        self.info.holds = True
        try:
            gradient = self._gradient(ticket, replica)
        except Exception:
            with suppress(NotReproducible):  # what was raised before is told
                if self._dropped(is_void):
                    return None
            raise
        return None if self._dropped(is_void) else gradient

    def _dropped(self, is_void: Callable[[], bool]) -> bool:
        self.info.holds = False
        void = is_void()
        if self.info.held:
            self.info.pass_on(drop=void)
        return void

    def commit(
        self, ticket: Ticket = NOT_GIVEN, gradient: Gradient | OfLoop = NOT_GIVEN, loss: LossTold = None
    ) -> bool:
        """Apply a gradient to the shared model. `loss`: of its batch, where it is to be in the record, and looked at.

        `gradient` is what `gradient` returned; or one tensor or None for each trainable parameter in the order of
        `replica.parameters()`; or by name a tensor, or of a table (rows, values): int64 of shape (n,), and of the
        table's dtype of shape (n, …). A row may come twice: the step adds its values up, or takes them one after the
        other, in the order in which they stand. Returns False where the ticket was handed back because an earlier one
        was orphaned: go on with `claim`, somebody will compute it again.

        Raises:
            ArgumentError: the ticket is not the one that this worker has and has read; the replica was written to; a
                name, a form or a row does not fit; or a table of row gradients was not declared.
        """
        try:
            if type(ticket) is not Ticket or ticket != self._read or ticket != self._row[Field.TICKET]:
                refuse_ticket(ticket, self.index, has=self._row[Field.TICKET], read=self._read)
            self.writes.refuse()
            if not isinstance(gradient, Gradient):
                gradient = self._taken(gradient, loss)
        except ArgumentError as error:
            self._mistakes.note(self._row[Field.TICKET], error)
            raise
        self._read = None
        self._row[Field.COMPUTED] += 1
        self.seat.pause(Hook.COMMITTING)
        graded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if not self.rule.commit(ticket, gradient):
                self.control.hand_back(self.index)
                return False
            if self._account is not None and not self.rule.combines:
                self._enter(ticket, gradient)
        except HogwildError as error:
            self._mistakes.note(self._row[Field.TICKET], error)
            raise
        finally:
            torch._C._set_grad_enabled(graded)
        self._row[Field.ENDED] = time.monotonic_ns()
        self.seat.count_skipped()
        self.control.finish(self.index)
        return True

    def _taken(self, gradients: OfLoop, loss: Any) -> Gradient:
        """What a loop of the user's own computed, in layout order."""
        self.seat.loss_told = loss is not None
        self.writes.refuse_left_over(gradients)
        gradient = Gradient(self._own_gradients.taken(gradients), loss_of(loss), self.rule.version_read)
        with self._quietly:
            self.rule.take(gradient)
        return gradient

    def _enter(self, ticket: Ticket, gradient: Gradient) -> None:
        """Enter a gradient in the account, unless it was left out on purpose."""
        left_out, self.seat.left_out = self.seat.left_out, False
        if not left_out:
            self.seat.enter(ticket.update, gradient.values, ticket.share)

    def _report(self) -> None:
        """Add this worker's account to those of the others."""
        account, totals = self._account, self.seat.state.audit
        if account is not None and totals is not None:
            with self.control.ticket_lock:  # who finds the other one taken leaves the next version to its holder
                totals.add(account.computed, account.rounding, account.updates, account.nanoseconds)
