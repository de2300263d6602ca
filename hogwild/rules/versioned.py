"""What the versioned rules share: whole versions of the model in a ring of slots.

Invariant: a version, once published, is never written again until nobody can read it; the next version and the next
optimizer state are written beside the newest ones, so a worker killed while it writes harms nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from hogwild.optim.gradients import Gathered
from hogwild.optim.table_steps import TableSteps
from hogwild.rules.base import Rule, Seat
from hogwild.shared.optimizer_state import OptimizerState
from hogwild.shared.tickets import Control
from hogwild.shared.words import Aborted, Hook, Word


class Versioned(Rule):
    """A rule whose commits make version v + 1 out of version v and a gradient."""

    versioned: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def attach(self, seat: Seat) -> None:
        """Tables are stepped where they lie."""
        super().attach(seat)
        self._states: Sequence[OptimizerState] = self.state.optimizer_states
        self._steps = TableSteps(self.state.tables, self._states) if self.state.tables else None
        if self._steps is not None:
            self._states = self._steps.states

    def detach(self) -> None:
        """Let go of the tables too."""
        del self._states, self._steps
        super().detach()

    def begin(self, control: Control, version: int) -> None:
        """The head is this version."""
        control[Word.HEAD] = version
        control[Word.OBSERVED] = control[Word.EVALUATED] = version

    def replica_at(self, version: int, slot: int) -> nn.Module:
        """The replica on a version, which lies in that slot; it is the one that is read from here on."""
        self.version_read = version
        read = self.state.slots[slot]
        return self.seat.binding.point_at(read.parameters, read.buffers, version)

    def write_version(self, update: int, version: int, source: int, target: int, gathered: Gathered | None) -> None:
        """Write version `version + 1` into slot `target` from slot `source`; None as gradients leaves all as it is.

        The buffers of the target are left to the caller where there are gradients.

        Raises:
            Aborted: the run has been given up, and what there is is being saved.
        """
        self.give_up_if_aborted()
        state, steps, made = self.state, self._steps, version + 1
        old, new, parity = state.slots[source], state.slots[target], version % 2
        before, after = self._states[parity], self._states[1 - parity]
        if steps is not None:
            steps.begin(made)
        if gathered is None:
            after.copy_from(before)
            new.copy_from(old)
            self.seat.optimizer.rest(new, after)
            return
        self.seat.pause(Hook.WRITING)
        if steps is not None:
            gathered = steps.log(made, gathered)
            self.seat.pause(Hook.LOGGED)
        self.seat.optimizer.advance(update, gathered, old, new, before, after)

    def publish(self, head: int) -> None:
        """Let a whole version be the newest.

        Raises:
            Aborted: the run has been given up, and the version before is being saved.
        """
        self.give_up_if_aborted()
        self.control.publish(Word.HEAD, head)
        self.seat.count_skipped()

    def give_up_if_aborted(self) -> None:
        """Write no more once the run has been given up.

        Raises:
            Aborted: it has.
        """
        if self.control[Word.ABORT]:
            raise Aborted

    def write_buffers(self, on_newest: bool, source: int, target: int) -> None:
        """Commit the buffers of the worker's last forward pass; `on_newest`: it was made on the source itself."""
        base, into = self.state.slots[source].buffers, self.state.slots[target].buffers
        self.seat.binding.commit_buffers(base, into, unchanged=on_newest)
