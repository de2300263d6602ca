"""Some gradients are computed twice, so that a fault of memory or processor, or state hidden in user code, is seen.

    a ticket is chosen by the seed    its gradient is laid in its slot, even where its turn has come
    the next free worker              computes it again on the same version, compares bit by bit, and marks it as equal
    after that                        a version is made of it

The second computation is another worker's than the first, unless no other worker is left. It may begin as soon as the
version is there, at the same time as the first one; then it waits for the first one to be compared with.

Invariants, whichever worker dies: a chosen gradient is applied only after two computations of it were equal. The
version that both read is still there then, because no later one has been made. A worker's row of words says which
ticket it computes again; the parent clears that word of a worker that died.

Where several machines train together, one of them computes a chosen gradient again: the machine after the one that
computed it first. The invariant holds on that machine; the others do not wait for it. Where that machine is lost,
nobody computes the gradient again. A machine that finds a difference ends the run for all.
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

STATE_ADVICE = "docs/same-bits.md says what may keep state, and where"  # how errors about unequal bits end
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
        """True where no gradient of that update, whose turn it is, still has to be computed a second time."""
        while self._first < (update + 1) * self._per_update:
            left = self._first >= update * self._per_update and self._first < self._control[Word.TOTAL]
            if left and not self._checked(self._first):
                return False
            self._first = self._first_from(self._first + 1)
        return True

    def holds(self, number: int) -> bool:
        """True where that ticket is chosen, on this machine or another. Its update is not applied yet."""
        may = number >= self._first or self._dealing.several
        return may and self._chosen.first_from(number) == number

    # --- what the worker asks

    def due(self, before: int | None = None) -> int | None:
        """A ticket whose gradient this worker can compute again now, and nobody else does; None: there is none.

        A worker that owns a ticket asks for one `before` it. If it waited for a later ticket, the owner of that might
        wait for this worker. For the same reason nobody waits for a ticket of another machine.
        """
        if self._control[Word.NEXT] <= self._first:  # mostly
            return None
        return next((number for number in self._handed_out(before) if self._is_due(number)), None)

    def take(self, before: int | None = None) -> int | None:
        """`due`, and claim it: nobody else computes it again until this worker lets go of it."""
        number = self.due(before)
        if number is None or not self._control.take_again(self._worker, number):
            return None
        if not self._is_done(number):
            return number
        self.let_go()  # somebody was faster
        return None

    def _is_done(self, number: int) -> bool:
        """True where that was computed again. The slot is asked before the head: once the update is applied, another
        gradient may lie in the slot."""
        return self._checked(number) or self._control.observe(Word.HEAD) > number // self._per_update

    def alone(self, number: int) -> bool:
        """True where the gradient in that slot was computed by this worker."""
        words = self._slot_of(number).words
        return self.is_there(number) and words[GradientSlot.WORKER] == self._number

    def can_be_compared(self, number: int) -> bool:
        """True once there is no point in waiting for the first computation. Either it is there, or its owner died, or
        the run was stopped before it. So a caller has to ask `is_there` after this."""
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
        """This worker no longer computes a ticket again."""
        self._row[Field.AGAIN] = 0

    def awaited(self) -> bool:
        """True while a gradient of this worker's still waits for its second computation."""
        if self._control[Word.NEXT] <= self._first:
            return False
        return any(self.alone(number) and not self._checked(number) for number in self._handed_out())

    # --- one ticket

    def _handed_out(self, before: int | None = None) -> Iterator[int]:
        """Chosen tickets that have been handed out, whose version is there and whose update is not applied yet."""
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
