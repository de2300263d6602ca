"""What the rules in place share: the model has one slot, and is read and written where it lies.

There is no version to read: `version_read` is the number of commits seen at the start, `version` that seen just
before the write, plus one. Under the rules that lock nothing both may miss commits made in the same instant.
"""

from __future__ import annotations

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

    def _apply(self, ticket: Ticket, gradient: Gradient, gathered: Gathered) -> None:
        if self.control[Word.ABORT]:  # what there is is being saved
            raise Aborted
        slot, state = self.state.slots[0], self.state.optimizer_states[0]
        row = self.control.row(self.seat.index)
        row[Field.PHASE] = Phase.WRITING
        self.seat.pause(Hook.WRITING)
        self.seat.optimizer.step(ticket.update, gathered, slot, state)
        version = self.control.commits() + 1
        self.seat.binding.commit_buffers(slot.buffers, slot.buffers, unchanged=version == gradient.version + 1)
        update = ticket.update
        self.state.journal.write(update, update, self.seat.index, gradient.version, version, gradient.loss)
        row[Field.COMMITS] += 1
        row[Field.PHASE] = Phase.APPLIED

    def _observe(self, ticket: Ticket) -> None:
        """Copies for evaluation and checkpoints are due by the number of the update, for versions are not exact."""
        if self.seat.due(ticket.update + 1):
            with self.control.commit_lock:
                self.seat.observe(ticket.update + 1, 0)
