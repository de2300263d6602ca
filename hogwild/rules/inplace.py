"""What the rules with one slot share: the model is read and written where it lies.

There is no version to read: `version_read` is the number of commits seen at the start, `version` that seen just
before the write, plus one. Under the rules that lock nothing both may miss commits made in the same instant.
"""

from __future__ import annotations

from torch import nn

from hogwild.control import Aborted, Field, Phase, Seam, Word
from hogwild.optimizer import Gathered
from hogwild.rules.base import Gradient, Rule


class InPlace(Rule):
    """A rule with one slot. Invariant: only the worker's own row and its own journal row are its alone to write."""

    def read(self, update: int) -> nn.Module:  # noqa: ARG002
        """The replica, on the one slot there is."""
        slot = self.state.slots[0]
        self.version_read = self.control.commits()
        return self.seat.binding.point_at(slot.parameters, slot.buffers)

    def commit(self, update: int, gradient: Gradient) -> bool:
        """Step the one slot."""
        gathered = self.prepare(update, gradient)
        if gathered is not None:
            self._apply(update, gradient, gathered)
        self._observe(update)
        return True

    def _apply(self, update: int, gradient: Gradient, gathered: Gathered) -> None:
        if self.control[Word.ABORT]:  # what there is is being saved
            raise Aborted
        slot, state = self.state.slots[0], self.state.optimizer_states[0]
        row = self.control.row(self.seat.index)
        row[Field.PHASE] = Phase.WRITING
        self.seat.pause(Seam.WRITING)
        self.seat.optimizer.step(update, gathered, slot, state)
        version = self.control.commits() + 1
        self.seat.binding.commit_buffers(slot.buffers, slot.buffers, unchanged=version == gradient.version + 1)
        self.state.journal.write(update, update, self.seat.index, gradient.version, version, gradient.loss)
        row[Field.COMMITS] += 1
        row[Field.PHASE] = Phase.APPLIED

    def _observe(self, update: int) -> None:
        """Copies for evaluation and checkpoints are due by the number of the update, for versions are not exact."""
        if self.seat.due(update + 1):
            with self.control.commit_lock:
                self.seat.observe(update + 1, 0)
