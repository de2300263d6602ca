"""What a rule finds where it is attached: one worker's view of shared memory, its replica and its optimizer.

A seat knows neither the rule nor the worker, so nothing here refers back to who uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from hogwild.config import RunConfig
from hogwild.errors import NonFiniteError, in_a_sentence
from hogwild.model.replica import Binding
from hogwild.optim.gradients import Gathered
from hogwild.optim.stepping import SharedOptimizer
from hogwild.rules.rechecks import Chosen
from hogwild.shared.state import SharedState
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import NOBODY, Field, Hook, Word
from hogwild.workers.account import Account
from hogwild.workers.milestones import Milestones

Pause = Callable[[Hook, "WorkerSeat"], None]
"""What a test plants: called in the worker at every hook."""

planted_pause: ContextVar[Pause | None] = ContextVar("planted_pause", default=None)
"""What the runs started in this context carry to their workers."""


class WorkerSeat:
    """Satisfies `hogwild.rules.base.Seat`, and is what a planted `Pause` sees of a worker.

    Args:
        index: number of the worker, from 0.
        config: of the run.
        state: the worker's view of the shared state.
        binding: its replica.
        optimizer: its optimizer.
        milestones: what looks at versions.
        order: for each trained parameter in the model's own order, its position in the layout.
        pause: what is planted.
        shares_gradients: other workers see a gradient before it is checked.
        tells_loss: the loss of a gradient is known; a loop of the user's own need not tell it.
        clippable: gradients may be clipped; a kernel has none.
        account: of the gradients that are computed, where the run is audited.
        chosen: the tickets whose gradients are computed twice, where any are.
    """

    def __init__(
        self,
        index: int,
        config: RunConfig,
        state: SharedState,
        binding: Binding,
        optimizer: SharedOptimizer,
        milestones: Milestones,
        order: Sequence[int],
        pause: Pause | None,
        *,
        shares_gradients: bool,
        tells_loss: bool,
        clippable: bool,
        account: Account | None,
        chosen: Chosen | None = None,
    ) -> None:
        self.index = index
        self.state = state
        self.control = state.control
        self.binding = binding
        self.optimizer = optimizer
        self.chosen = chosen
        self._account = account
        self._skipped = 0  # updates left out since `count_skipped` was last called
        self.left_out = False  # the update being committed is not applied, on purpose
        self._config = config
        optimizer.clips = self.clips
        self._milestones = milestones
        self._order = order
        self._pause = pause
        self._row = self.control.row(index)
        self._number = self.control.numbers[index]
        self._shares_gradients = shares_gradients
        self._clippable = clippable
        self.loss_told = tells_loss  # of the gradient being committed
        self.gradient_lost = False

    def ignores_nonfinite(self, update: int) -> bool:
        """True where the run says `on_nonfinite="ignore"` for that update."""
        return bool(self._setting("on_nonfinite", update) == "ignore")

    def _setting(self, name: str, update: int) -> Any:
        """The value of a setting at that update."""
        return self._config.at(name, update) if self._config.changes else getattr(self._config, name)

    @property
    def ticket(self) -> int:
        """The number of the ticket this worker owns; −1 where it owns none."""
        return self._row[Field.TICKET]

    @property
    def tickets_handed_out(self) -> int:
        """How many tickets all workers together have taken."""
        return self.control[Word.NEXT]

    def pause(self, hook: Hook) -> None:
        """A hook: a named moment of the protocol, at which tests plant delays and kills."""
        if self._pause is not None:
            self._pause(hook, self)

    def finite(self, update: int, loss: float, gradients: Gathered) -> bool:
        """True where they may be applied: loss and gradient are finite, or the run does not care."""
        unknown = math.isnan(loss) and not self.loss_told
        return self.ignores_nonfinite(update) or ((math.isfinite(loss) or unknown) and gradients.finite())

    def usable(self, ticket: Ticket, loss: float, gradients: Gathered) -> bool:
        """False where the update is to be left out; see `hogwild.rules.base.Seat`."""
        if self.finite(ticket.update, loss, gradients):
            return True
        self.skip(ticket, loss, self._number)
        return False

    def skip(self, ticket: Ticket, loss: float, worker: int) -> None:
        """Leave out what that worker computed, for it is not finite; see `hogwild.rules.base.Seat`."""
        if self._setting("on_nonfinite", ticket.update) != "skip":
            raise self._not_finite(ticket, loss, worker)
        self._skipped += worker in self.control.numbers  # others count their own
        self.leave_out()

    def count_skipped(self) -> None:
        """Count the updates that were left out since the last call; see `hogwild.rules.base.Seat`."""
        if self._skipped:
            self._row[Field.SKIPPED] += self._skipped
            self._skipped = 0

    def take_not_finite(self, ticket: Ticket, loss: float) -> None:
        """Report a loss that is not finite, of an applied update; see `hogwild.rules.base.Seat`."""
        if not self.ignores_nonfinite(ticket.update):
            raise self._not_finite(ticket, loss, self._number, untouched="the shared model has been written by it")

    def _not_finite(
        self, ticket: Ticket, loss: float, worker: int, untouched: str = "the shared model was not touched by it"
    ) -> NonFiniteError:
        what = "the gradient is not finite" if self.gradient_lost else f"the loss is {loss}"
        if math.isfinite(loss):
            what = "the gradient is not finite"
            if self._shares_gradients:
                untouched = "it is in the shared .grad, and another worker may have applied it"
        helps = ["a lower learning rate", *["clip_grad_norm"] * self._clippable, "on_nonfinite='skip'"]
        return NonFiniteError(
            f"{what} at update {ticket.update} (batch {ticket.batch}), worker {worker}; {untouched} "
            f"({in_a_sentence(helps, 'or')} may help)",
            worker=worker,
            update=ticket.update,
            batch=ticket.batch,
        )

    def leave_out(self) -> None:
        """The update being committed is not applied, on purpose; it stays out of the account."""
        self.left_out = True

    @property
    def audited(self) -> bool:
        """True where the run keeps an account of the gradients."""
        return self._account is not None

    def enter(self, update: int, gradients: Sequence[Tensor | None], share: float) -> None:
        """Enter gradients in the account, of which that update is made to a `share`, if there is one."""
        if self._account is not None:
            self._account.add(gradients, [p.data for p in self.binding.parameters], self.optimizer.rates(update), share)

    @property
    def clips(self) -> bool:
        """True where gradients of some update are clipped."""
        return self._config.clip_grad_norm is not None or bool(self._config.values_of("clip_grad_norm"))

    def clip(self, update: int, gradients: Gathered) -> None:
        """Clip to `clip_grad_norm` as `torch.nn.utils.clip_grad_norm_` does; see `hogwild.rules.base.Seat`."""
        limit = self._setting("clip_grad_norm", update)
        if limit is not None:
            gradients.clip(self._order, limit)

    def due(self, version: int) -> bool:
        """True when something looks at that version."""
        return self._milestones.due(version)

    def observe(self, version: int, slot: int, *, holds_ticket: bool = False) -> None:
        """Let whatever is due look at a version that is complete and not yet published; see `rules.base.Seat`."""
        self._milestones.reach(version, slot, NOBODY if holds_ticket else self.index)
