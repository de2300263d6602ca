"""`ordered`: update u reads exactly version u − τ, and versions are made in the order of the updates.

    ticket u   wait for version u − τ → gradient on that slot → wait for version u → write u + 1 → head = u + 1

    ring of τ + 2 slots    … │ u − τ │ … │ u − 1 │  u  │ u + 1 │      slot of version v: v mod (τ + 2)
                               read by update u      newest  being written over version u − τ − 1,
                                                             whose last reader, update u − 1, has committed

What holds whoever is fast, slow or killed: version u + 1 is a function of version u, the optimizer's state at u,
and a gradient computed on version max(0, u − τ) from batch u; none of them depends on who computed it. There is one
committer at a time, the owner of ticket `head`, so publishing needs no lock. A ticket that its owner left
unpublished can be computed again, for the slot it reads is not written until that ticket commits.
What does not hold: the model is τ updates older where a gradient is computed than where it is applied
(Langford et al. 2009), which costs accuracy as τ and the momentum grow (Mitliagkas et al. 2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from hogwild.errors import ArgumentError, NonFiniteError
from hogwild.rules.base import Gradient
from hogwild.rules.versioned import Versioned
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import Settled, Ticket
from hogwild.shared.words import Field, Hook, Phase, Word


class Ordered(Versioned):
    """`torch.autograd.grad` on exactly version u − τ; the next version in update order."""

    name: ClassVar[str] = "ordered"
    summary: ClassVar[str] = "computed on the version τ updates old; the next version, in update order"
    same_bits: ClassVar[bool] = True

    staleness: int

    def __init__(self, staleness: int = 1) -> None:
        if staleness < 0:
            raise ArgumentError(f"staleness {staleness} is negative; 0 is serial training, 1 keeps two workers busy")
        self.staleness = staleness

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:
        """τ + 1 workers are busy."""
        return {"staleness": max(1, workers - 1)}

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """A ring of τ + 2 slots and two copies of the optimizer's state, however many workers there are."""
        return Needs(slots=self.staleness + 2, state_copies=2)

    def check(self, workers: int) -> None:
        """More than τ + 1 workers cannot be busy."""
        if workers > self.staleness + 1:
            raise ArgumentError(
                f"{workers} workers are over the {self.staleness + 1} that staleness {self.staleness} keeps busy; "
                f"set staleness={workers - 1} (it changes the result) or workers={self.staleness + 1}"
            )

    def ready(self, ticket: Ticket) -> bool:
        """Version u − τ exists."""
        return self.control.observe(Word.HEAD) >= ticket.update - self.staleness

    def read(self, ticket: Ticket) -> nn.Module:
        """The replica on version max(0, u − τ)."""
        self.version_read = max(0, ticket.update - self.staleness)
        slot = self.state.slots[self._slot(self.version_read)]
        return self.seat.binding.point_at(slot.parameters, slot.buffers)

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Wait for version u, then make version u + 1 of it.

        What is not finite is raised in its turn, so that it is the same update's at any number of workers, and only if
        the run comes to it.
        """
        seat, control, update = self.seat, self.control, ticket.update
        gathered, wrong = None, None
        try:
            gathered = self.prepare(ticket, gradient)
        except NonFiniteError as error:
            wrong = error
        if control.observe(Word.HEAD) != update:
            control.wait_until(lambda: self._may_commit(update), seat.index)
        if update >= control[Word.TOTAL]:  # the run was stopped at an earlier version
            seat.leave_out()
            return True
        if control.observe(Word.HEAD) != update:
            return False
        if wrong is not None:
            raise wrong
        control.row(seat.index)[Field.PHASE] = Phase.WRITING
        source, target = self._slot(update), self._slot(update + 1)
        self.write_version(update, update, source, target, gathered)
        if gathered is not None:
            self.write_buffers(gradient.version == update, source, target)
        self.state.journal.write(update, update, seat.index, gradient.version, update + 1, gradient.loss)
        seat.observe(update + 1, target)
        seat.pause(Hook.PUBLISHING)
        control.publish(Word.HEAD, update + 1)
        seat.pause(Hook.PUBLISHED)
        return True

    def _may_commit(self, update: int) -> bool:
        control = self.control
        head = control.observe(Word.HEAD)
        return head == update or update >= control[Word.TOTAL] or control.orphan_before(update)

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """A ticket is done once its version is published."""
        return Settled.AGAIN if state.control[Word.HEAD] <= ticket else Settled.DONE

    def newest(self, state: SharedState) -> tuple[int, int]:
        """The head."""
        version = state.control.observe(Word.HEAD)
        return version, self._slot(version)

    def place(self, version: int) -> int:
        """Its slot in the ring."""
        return self._slot(version)

    def window(self, version: int) -> range:
        """Versions v − τ to v."""
        return range(max(0, version - self.staleness), version + 1)

    def _slot(self, version: int) -> int:
        return version % (self.staleness + 2)
