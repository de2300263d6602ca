"""How the values of a machine that trains apart become the mean of all machines: what its workers do for it.

Where versions are made one after another from gradients that wait, the one that makes an averaged version publishes
it once it is the mean, and nothing else waits. Under the other rules workers stand still:

    ticket u ── before it starts: every update below the averaged version is settled? ── no ──▶ wait, or take an orphan
                │ yes: whoever has the commit lock
                ├── lays the values out, PROPOSED ── … the averager … AVERAGED ──▶ whoever has the lock adopts the mean
                └── lets whatever is due look at it, ADOPTED ──▶ all go on

What holds whoever is killed: no update from an averaged version on starts before it is the mean, and nobody writes the
model in between but who holds the commit lock. Each step is taken under that lock, and changes nothing if it is taken
again; the kernel frees the lock of a dead worker, and any worker that waits takes its place. What a dead worker owned
is settled by the parent, and what of it is computed again is taken first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from hogwild.shared.words import Word

if TYPE_CHECKING:
    from hogwild.rules.base import Rule


class Averaging:
    """What one worker does about averaged versions.

    Args:
        rule: attached to that worker, in a run whose machines average.
    """

    def __init__(self, rule: Rule) -> None:
        averages, exchange = rule.state.plan.dealing.averages, rule.state.exchange
        assert averages is not None
        assert exchange is not None
        self._averages, self._exchange = averages, exchange
        self._rule = rule
        self._state = rule.state
        self._control = rule.control
        self._index = rule.seat.index

    @property
    def _last(self) -> int:
        return -(-self._control[Word.TOTAL] // self._rule.tickets_per_update)

    def at(self, version: int) -> bool:
        """True where that version is averaged."""
        return self._averages.are_at(version, self._last)

    # --- versions that are made one after another

    def whole(self, version: int, slot: int) -> None:
        """Make a version the mean that lies complete in that slot and is not yet published, where it is averaged.

        Called by who alone may publish it. Who does after that one died proposes nothing a second time.
        """
        if not self.at(version):
            return
        control = self._control
        if control.observe(Word.PROPOSED) < version:
            control.wait_until(self._is_free, self._index)
            self._propose(version, self._state.values(version, slot))
        control.wait_until(partial(self._is_averaged, version), self._index)
        self._exchange.give(self._state.values(version, slot))
        control.publish(Word.ADOPTED, version)

    # --- workers that stand still

    def passed(self, update: int) -> bool:
        """True once that update may start. Whoever looks in vain does what can be done for it."""
        return self._is_adopted(self._averages.before(update))

    def over(self) -> bool:
        """True once the last version is the mean; likewise."""
        return self._is_adopted(self._last)

    def _is_adopted(self, version: int) -> bool:
        control = self._control
        if control.observe(Word.ADOPTED) >= version:
            return True
        proposed = control.observe(Word.PROPOSED) >= version
        if not (self._is_averaged(version) if proposed else self._stands_at(version)):
            return False
        if control.commit_lock.acquire(blocking=False):
            try:
                self._go_on(version)
            finally:
                control.commit_lock.release()
        return control.observe(Word.ADOPTED) >= version

    def _stands_at(self, version: int) -> bool:
        """True once every update below that version is settled, and the averager is done with what was before."""
        tickets = min(version * self._rule.tickets_per_update, self._control[Word.TOTAL])
        return self._is_free() and self._control.all_done_before(tickets, self._index)

    def _go_on(self, version: int) -> None:
        """Do the next thing that leads to that version being the mean."""
        control = self._control
        if control[Word.ABORT] or control.observe(Word.ADOPTED) >= version:
            return
        if control.observe(Word.PROPOSED) < version:
            self._propose(version, self._state.values(*self._rule.newest(self._state)))
        elif self._is_averaged(version):
            slot = self._rule.adopt(self._exchange)
            self._rule.seat.observe(version, slot, holds_ticket=True)
            control.publish(Word.ADOPTED, version)

    # --- the block

    def _propose(self, version: int, values: Sequence[Tensor]) -> None:
        self._exchange.take(values)
        self._control.publish(Word.PROPOSED, version)

    def _is_free(self) -> bool:
        return self._is_averaged(self._control.observe(Word.PROPOSED))

    def _is_averaged(self, version: int) -> bool:
        return self._control.observe(Word.AVERAGED) >= version
