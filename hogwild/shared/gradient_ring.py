"""The gradient slots of a run by ticket: where the gradient of each lies, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.words import Word, Words


class GradientRing:
    """Slots for the gradients of some updates that follow each other, over and over.

    A slot is free for a ticket once the update is applied whose gradient lay in it before.

    Args:
        control: of the run.
        slots: as many for each update as it has tickets.
        per_update: how many these are.
    """

    def __init__(self, control: Words, slots: Sequence[GradientSlot], per_update: int) -> None:
        self._control = control
        self.per_update = per_update
        self.sets = [slots[first : first + per_update] for first in range(0, len(slots), per_update)]
        self.told_every = max(1, len(self.sets) // 3)  # versions: so that no other machine waits for room here

    def slot(self, ticket: int) -> GradientSlot:
        """That of a ticket."""
        update, member = divmod(ticket, self.per_update)
        return self.sets[update % len(self.sets)][member]

    def waits(self, ticket: int) -> bool:
        """True while the gradient of that ticket lies whole in its slot."""
        return bool(self.waiting([ticket]))

    def waiting(self, tickets: Iterable[int]) -> list[int]:
        """Those of these tickets whose gradients do."""
        stamp, per_update, slot = GradientSlot.STAMP, self.per_update, self.slot
        with self._control.ordering():
            return [ticket for ticket in tickets if slot(ticket).words[stamp] == ticket // per_update + 1]

    def is_there(self, ticket: int) -> bool:
        """True once it waits, or is applied: in this order, for a slot is used again only after. To be asked by who
        holds the ticket lock."""
        update = ticket // self.per_update
        return self.slot(ticket).words[GradientSlot.STAMP] == update + 1 or self._control[Word.HEAD] > update

    def is_free(self, ticket: int) -> bool:
        """True once nobody reads what lay in the slot of that ticket before."""
        return ticket // self.per_update < self._control.observe(Word.HEAD) + len(self.sets)
