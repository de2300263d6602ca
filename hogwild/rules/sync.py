"""`sync`: update u averages the gradients of M micro-batches, all computed on version u.

    ticket t = u M + m: wait for version u → gradient of micro-batch t → gradient slot m → whoever finds all M there
    sums them in the order of m, divides, and makes version u + 1

What holds whoever is fast, slow or killed: version u + 1 is a function of version u and of batches uM … uM + M − 1,
summed in one order. The commit is made under a lock by anyone who finds the set complete, waiting workers included,
so a committer that dies is replaced by the next one to look. Gradient slots are stamped with u + 1 and need no
clearing. Running averages of normalisation layers are exact for the first micro-batch; the changes of the others
are re-based (see `hogwild.model.buffers.BufferRule`).
What it costs: workers wait for the slowest of a set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from hogwild.errors import ArgumentError
from hogwild.rules.base import Gradient
from hogwild.rules.versioned import Versioned
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import Settled, Ticket
from hogwild.shared.words import Field, Hook, Phase, Word

_STAMP, _USABLE = 0, 1  # the two words of a gradient slot


class Sync(Versioned):
    """`torch.autograd.grad` on M micro-batches of exactly version u; one update from their average."""

    name: ClassVar[str] = "sync"
    summary: ClassVar[str] = "M micro-batches on the newest version; one update from their average"
    same_bits: ClassVar[bool] = True

    def __init__(self, micro_batches: int = 2) -> None:
        if micro_batches < 1:
            raise ArgumentError(f"micro_batches {micro_batches} is below 1; 2 keeps two workers busy")
        self.tickets_per_update = micro_batches

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:
        """M workers are busy."""
        return {"micro_batches": max(2, workers)}

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """Two slots, two copies of the optimizer's state, and M gradients."""
        return Needs(slots=2, state_copies=2, gradients=self.tickets_per_update)

    def check(self, workers: int) -> None:
        """More than M workers cannot be busy."""
        if workers > self.tickets_per_update:
            raise ArgumentError(
                f"{workers} workers are over the {self.tickets_per_update} micro-batches of an update; set "
                f"micro_batches={workers} (it changes the result) or workers={self.tickets_per_update}"
            )

    def ticket(self, number: int, total: int) -> Ticket:
        """A micro-batch: update u is made of those numbered uM to uM + M − 1, or to the last of the run."""
        update = number // self.tickets_per_update
        return Ticket(number, update, number, share=1.0 / max(1, self._members(update, total)))

    def ready(self, ticket: Ticket) -> bool:
        """The version that this ticket's update reads exists. Whoever looks completes a finished set on the way."""
        if self.control.observe(Word.HEAD) < ticket.update:
            self._complete_set()
        return self.control.observe(Word.HEAD) >= ticket.update

    def read(self, ticket: Ticket) -> nn.Module:
        """The replica on the version that this ticket's update reads."""
        self.version_read = ticket.update
        slot = self.state.slots[self.version_read % 2]
        return self.seat.binding.point_at(slot.parameters, slot.buffers)

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Store the micro-batch's gradient, and make the next version if the set is now complete."""
        member = ticket.number % self.tickets_per_update
        gathered = self.seat.optimizer.gather(gradient.values)
        usable = self.seat.usable(ticket, gradient.loss, gathered)
        slot = self.state.gradients[member]
        self.control.row(self.seat.index)[Field.PHASE] = Phase.WRITING
        self.seat.pause(Hook.WRITING)
        for i, tensor in enumerate(gathered.tensors):
            slot.present[i] = int(tensor is not None)
            if tensor is not None:
                slot.tensors[i].copy_(tensor.to_dense() if tensor.is_sparse else tensor)
        for target, value in zip(slot.buffers, self.seat.binding.changed_buffers(), strict=True):
            target.copy_(value)
        slot.loss.fill_(gradient.loss)
        slot.words[_USABLE] = int(usable)
        with self.control.ordering():
            slot.words[_STAMP] = ticket.update + 1
        self._complete_set()
        return True

    def close(self) -> None:
        """Complete the last set, should the worker that was about to have died."""
        self._complete_set()

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """A ticket is done once its gradient lies complete in its slot."""
        number, member = divmod(ticket, self.tickets_per_update)
        done = state.control[Word.HEAD] > number or state.gradients[member].words[_STAMP] == number + 1
        return Settled.DONE if done else Settled.AGAIN

    def place(self, version: int) -> int:
        """Its slot of the two."""
        return version % 2

    def newest(self, state: SharedState) -> tuple[int, int]:
        """The head."""
        version = state.control.observe(Word.HEAD)
        return version, version % 2

    def _members(self, update: int, total: int) -> int:
        """Micro-batches of that update: M, or what is left at the end of a run of so many; 0 or less beyond it."""
        return min(self.tickets_per_update, total - update * self.tickets_per_update)

    def _set_is_complete(self, number: int) -> bool:
        members = self._members(number, self.control[Word.TOTAL])
        with self.control.ordering():
            return members > 0 and all(slot.words[_STAMP] == number + 1 for slot in self.state.gradients[:members])

    def _complete_set(self) -> None:
        if not self._set_is_complete(self.control.observe(Word.HEAD)):
            return
        with self.control.commit_lock:
            number = self.control.observe(Word.HEAD)
            if self._set_is_complete(number):
                self._make_version(number, self.state.gradients[: self._members(number, self.control[Word.TOTAL])])

    def _make_version(self, number: int, parts: Sequence[GradientSlot]) -> None:
        seat = self.seat
        loss = sum(part.loss.item() for part in parts) / len(parts)
        gathered = None
        if all(part.words[_USABLE] for part in parts):
            gathered = seat.optimizer.gather([self._average(i, parts) for i in range(len(parts[0].tensors))])
            seat.clip(gathered)
        self.write_version(number, number, number % 2, (number + 1) % 2, gathered)
        if gathered is not None:
            self._rebase_buffers(number, parts)
        self.state.journal.write(number, number, seat.index, number, number + 1, loss)
        seat.observe(number + 1, (number + 1) % 2)
        seat.pause(Hook.PUBLISHING)
        self.control.publish(Word.HEAD, number + 1)
        seat.pause(Hook.PUBLISHED)

    @staticmethod
    def _average(i: int, parts: Sequence[GradientSlot]) -> Tensor | None:
        """The gradients of parameter i, summed in order and divided by the number of micro-batches."""
        present = [part.tensors[i] for part in parts if part.present[i]]
        if not present:
            return None
        total = present[0].clone()
        for gradient in present[1:]:
            total.add_(gradient)
        return total.div_(len(parts))

    def _rebase_buffers(self, number: int, parts: Sequence[GradientSlot]) -> None:
        before = self.state.slots[number % 2].buffers
        newest: Sequence[Tensor] = before
        for part in parts:
            newest = self.seat.binding.rebase(before, part.buffers, newest)
        for target, value in zip(self.state.slots[(number + 1) % 2].buffers, newest, strict=True):
            target.copy_(value)
