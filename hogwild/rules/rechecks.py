"""Some gradients are computed twice, so that a fault of memory or processor, or state hidden in user code, is seen.

    chosen by the seed    its gradient is laid in its slot, even where its turn has come
    who is free next      computes it again on the same version, compares bit by bit with what lies there, says so
    only then             is a version made of it

Somebody else than who computed it does so, and whoever did only where nobody else is left. It may begin as soon as the
version is there, beside the first computation, and then waits for that.

What holds, whoever dies: a chosen gradient is applied only after two computations of it were equal, and the version
that both read is there until then, for no later one is made. A row of the control words says who computes which ticket
again; the parent clears that of a worker that died.

Of several machines that train together one computes a chosen gradient again, the next after the one that owes it. What
is said above holds there; the others do not wait. Where it was lost nobody does, and where it finds a fault it ends the
run for all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from hogwild.data.seeding import mix
from hogwild.errors import some_of
from hogwild.shared.dealing import Dealing
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.hashing import equal_bits
from hogwild.shared.tickets import Control
from hogwild.shared.words import Field, Word

_LEAST = 2  # tickets for each of several machines, on average
_SALT = 0x7265636865636B  # no batch is seeded by the numbers that choose


class Chosen:
    """Tickets chosen by a seed: one of every 1 / share.

    Args:
        seed: of the run.
        share: in (0, 1].
    """

    def __init__(self, seed: int, share: float) -> None:
        self._seed = seed
        self._share = share

    @classmethod
    def of(cls, seed: int, share: float, tickets: int, dealing: Dealing) -> Chosen:
        """Those of a run of so many tickets: a few for each machine on average, where several train together, for else
        nobody would see that one has other data than the others."""
        least = min(1.0, _LEAST * dealing.nodes / max(1, tickets)) if dealing.several else 0.0
        return cls(seed, max(share, least))

    def first_from(self, number: int) -> int:
        """The first chosen ticket that is that one or a later one."""
        block = int(number * self._share)
        while self._begin(block) > number:
            block -= 1
        while (chosen := self._in(block)) < number:
            block += 1
        return chosen

    def _begin(self, block: int) -> int:
        """The first ticket of a block; one of each block is chosen."""
        return -int(-block // self._share)

    def _in(self, block: int) -> int:
        begin = self._begin(block)
        return begin + mix(self._seed, _SALT, block) % (self._begin(block + 1) - begin)


class Rechecks:
    """Which gradients are still to be computed a second time, as one worker sees it.

    Args:
        chosen: which ones at all.
        control: of the run.
        worker: number of the worker.
        number: the same among those of all machines.
        slot_of: number of a ticket → the slot in which its gradient waits.
        staleness, per_update: τ and M of the rule.
    """

    def __init__(
        self,
        chosen: Chosen,
        control: Control,
        worker: int,
        slot_of: Callable[[int], GradientSlot],
        *,
        number: int,
        staleness: int,
        per_update: int,
    ) -> None:
        self._number = number
        self._chosen = chosen
        self._control = control
        self._dealing = control.dealing
        self._worker = worker
        self._row = control.row(worker)
        self._others = [control.row(other) for other in range(control.workers) if other != worker]
        self._slot_of = slot_of
        self._staleness = staleness
        self._per_update = per_update
        self._first = self._first_from(control[Word.HEAD] * per_update)  # none before it is left

    # --- what the rule asks

    def passed(self, update: int) -> bool:
        """True where nothing of that update, whose turn it is, is still to be computed again."""
        while self._first < (update + 1) * self._per_update:
            left = self._first >= update * self._per_update and self._first < self._control[Word.TOTAL]
            if left and not self._checked(self._first):
                return False
            self._first = self._first_from(self._first + 1)
        return True

    def holds(self, number: int) -> bool:
        """True where that ticket, whose update has yet to be applied, is a chosen one, of this machine or another."""
        may = number >= self._first or self._dealing.several
        return may and self._chosen.first_from(number) == number

    # --- what the worker asks

    def due(self, before: int | None = None) -> int | None:
        """A ticket whose gradient this worker can compute again now, and nobody else does; None: there is none.

        Who has a ticket asks for one `before` it, and so never waits for a later one, whose owner may wait for it. Nor
        does anyone wait for another machine's, which may wait for a version that is yet to be made here.
        """
        if self._control[Word.NEXT] <= self._first:  # mostly
            return None
        return next((number for number in self._handed_out(before) if self._is_due(number)), None)

    def take(self, before: int | None = None) -> int | None:
        """The same, this worker's from now on until it lets go of it."""
        number = self.due(before)
        if number is None or not self._control.take_again(self._worker, number):
            return None
        if not self._is_done(number):
            return number
        self.let_go()  # somebody was faster
        return None

    def _is_done(self, number: int) -> bool:
        """True where that was computed again; asked in this order, for the slot of what is applied is used again."""
        return self._checked(number) or self._control.observe(Word.HEAD) > number // self._per_update

    def alone(self, number: int) -> bool:
        """True where the gradient that lies there is this worker's own."""
        words = self._slot_of(number).words
        return self.is_there(number) and words[GradientSlot.WORKER] == self._number

    def can_be_compared(self, number: int) -> bool:
        """True once the first computation is there, or may never come unless this worker goes on: its owner died, or
        the run was stopped before it. A moment later somebody may have taken the ticket of the dead: so what is there
        is asked for by itself."""
        return self.is_there(number) or number >= self._control[Word.TOTAL] or self._control.orphan_before(number + 1)

    def is_there(self, number: int) -> bool:
        """True once the first computation waits in its slot."""
        return self._says(number, GradientSlot.STAMP)

    def mark(self, number: int) -> None:
        """Say that both computations of that gradient are equal."""
        with self._control.ordering():
            self._slot_of(number).words[GradientSlot.CHECKED] = number // self._per_update + 1
        self._row[Field.RECHECKED] += 1

    def let_go(self) -> None:
        """This worker computes nothing again any more."""
        self._row[Field.AGAIN] = 0

    def awaited(self) -> bool:
        """True while a gradient of this worker's waits for somebody to compute it again."""
        if self._control[Word.NEXT] <= self._first:
            return False
        return any(self.alone(number) and not self._checked(number) for number in self._handed_out())

    # --- one ticket

    def _handed_out(self, before: int | None = None) -> Iterator[int]:
        """Those that are handed out, of updates that have yet to be applied and whose version is there."""
        control = self._control
        head = control.observe(Word.HEAD)
        end = min(control[Word.NEXT], control[Word.TOTAL], (head + self._staleness + 1) * self._per_update)
        end = end if before is None else min(end, before)
        if self._first < head * self._per_update:
            self._first = self._first_from(head * self._per_update)
        number = self._first
        while number < end:
            yield number
            number = self._first_from(number + 1)

    def _first_from(self, number: int) -> int:
        """The first ticket that this machine computes a second time and that is that one or a later one."""
        chosen = self._chosen.first_from(number)
        while self._dealing.checker(chosen) != self._dealing.node:
            chosen = self._chosen.first_from(chosen + 1)
        return chosen

    def _is_due(self, number: int) -> bool:
        if self._checked(number) or self._control.computes_again(number):
            return False
        if self.is_there(number):
            return not self.alone(number) or not any(row[Field.PRESENT] for row in self._others)
        dealt_here = self._dealing.dealer(number) == self._dealing.node
        return dealt_here and self._row[Field.TICKET] != number and not self._control.orphan_before(number + 1)

    def _checked(self, number: int) -> bool:
        return self._says(number, GradientSlot.CHECKED)

    def _says(self, number: int, word: int) -> bool:
        return self._control.says(self._slot_of(number).words, word, number // self._per_update + 1)


def unequal_losses(one: float, other: float) -> str | None:
    """What differs between the losses of two computations, in words; None where their bits are equal."""
    return f"loss ({one!r} and {other!r})" if struct.pack("d", one) != struct.pack("d", other) else None


def unequal_tensors(
    kind: str, names: Sequence[str], ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]
) -> str | None:
    """Which of some tensors of that kind differ, in words; None where all have the same bits."""
    uneven = [n for n, x, y in zip(names, ours, theirs, strict=True) if not equal_bits(x, y)]
    return f"{kind} of {some_of(uneven)}" if uneven else None
