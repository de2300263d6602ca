"""What the rules in place share: the model has one slot, and is read and written where it lies.

There is no version to read: `version_read` is the number of commits seen at the start, `version` that seen just
before the write, plus one. Under the rules that lock nothing both may miss commits made in the same instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from hogwild.optim.gradients import Gathered
from hogwild.rules.base import Gradient, Rule
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Aborted, Field, Hook, Phase, Word


class InPlace(Rule):
    """A rule with one slot. Invariant: only the worker's own row and its own journal row are its alone to write."""

    def read(self, ticket: Ticket) -> nn.Module:  # noqa: ARG002
        """The replica, on the one slot there is."""
        slot = self.state.slots[0]
        self.version_read = self.control.commits()
        return self.seat.binding.point_at(slot.parameters, slot.buffers)

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Step the one slot."""
        gathered = self.prepare(ticket, gradient)
        if gathered is not None:
            self._apply(ticket, gradient, gathered)
        self._observe(ticket)
        return True

    def train_in_place(self, ticket: Ticket, step: Callable[[], float]) -> None:
        """Let `step`, which returns the loss, write the one slot."""
        self.version_read = self.control.commits()
        self._train(ticket, step)
        self._observe(ticket)

    def _train(self, ticket: Ticket, step: Callable[[], float]) -> None:
        self._begin_to_write()
        loss = step()
        if not math.isfinite(loss):
            self.seat.take_not_finite(ticket, loss)
        self._note(ticket, self.version_read, self.control.commits() + 1, loss)

    def _apply(self, ticket: Ticket, gradient: Gradient, gathered: Gathered) -> None:
        self._begin_to_write()
        slot = self.state.slots[0]
        self.seat.optimizer.step(ticket.update, gathered, slot, self.state.optimizer_states[0])
        version = self.control.commits() + 1
        self.seat.binding.commit_buffers(slot.buffers, slot.buffers, unchanged=version == gradient.version + 1)
        self._note(ticket, gradient.version, version, gradient.loss)

    def _begin_to_write(self) -> None:
        if self.control[Word.ABORT]:  # what there is is being saved
            raise Aborted
        self.control.row(self.seat.index)[Field.PHASE] = Phase.WRITING
        self.seat.pause(Hook.WRITING)

    def _note(self, ticket: Ticket, read: int, version: int, loss: float) -> None:
        """Say that the update has been applied, in the journal and in this worker's row."""
        row, update = self.control.row(self.seat.index), ticket.update
        self.state.journal.write(update, update, self.seat.index, read, version, loss)
        row[Field.COMMITS] += 1
        row[Field.PHASE] = Phase.APPLIED

    def _observe(self, ticket: Ticket) -> None:
        """Copies for evaluation and checkpoints are due by the number of the update, for versions are not exact."""
        if self.seat.due(ticket.update + 1):
            with self.control.commit_lock:
                self.observe(ticket.update + 1, 0)
