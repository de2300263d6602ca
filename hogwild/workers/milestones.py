"""Milestones: the versions at which something looks at the model, in the worker that has just made one.

An evaluation, a seal of the version's bits in the journal, or a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from hogwild.rules.base import Rule
from hogwild.shared.hashing import Hasher
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word


class VersionSaver(Protocol):
    """Saves a checkpoint every so many versions; called by the worker that has just made one."""

    @property
    def every(self) -> int:
        """Versions from one checkpoint to the next."""
        ...

    def due(self, version: int) -> bool:
        """True when this version is to be saved."""
        ...

    def save(self, state: SharedState, rule: Rule, version: int, slot: int, worker: int) -> None:
        """Save that version, which lies complete in `slot` and was made by `worker`; `rule` is not attached."""
        ...


class Milestones:
    """Sees to the milestones of a run, for one worker.

    Args:
        state: the worker's view of the shared state.
        rule: the run's, not attached to a worker.
        worker: its number.
        evaluate_every: versions between evaluations; 0 is never.
        traced: versions that the parent wants to see besides.
        stops: an evaluation may end the run, so training waits for it.
        checkpoint: saves versions; None is never.
    """

    def __init__(
        self,
        state: SharedState,
        rule: Rule,
        worker: int,
        *,
        evaluate_every: int,
        traced: frozenset[int],
        stops: bool,
        checkpoint: VersionSaver | None,
    ) -> None:
        self._state = state
        self._rule = rule
        self._worker = worker
        self._evaluate_every = evaluate_every
        self._digest_every = state.plan.digest_every if rule.versioned else 0
        self._traced = traced
        self._traced_in_order = sorted(traced)
        self._stops = stops
        self._checkpoint = checkpoint
        saved_every = checkpoint.every if checkpoint is not None else 0
        self._periods = [every for every in (evaluate_every, self._digest_every, saved_every) if every]
        self._hashers: dict[tuple[int, int], Hasher] = {}

    def due(self, version: int) -> bool:
        """True when something looks at that version."""
        for every in self._periods:  # once an update: a loop, for any() takes three times as long
            if version % every == 0:
                return True
        return version in self._traced

    def reach(self, version: int, slot: int, made_by: int) -> None:
        """Let whatever is due look at a version that is complete in that slot and not yet published. `made_by` is the
        worker whose ticket is in it; NOBODY where no worker's is."""
        if not self.due(version):
            return
        if self._digest_every and version % self._digest_every == 0:
            self._state.journal.write_seal(version, self._hasher(version, slot))
        if self._is_shown(version):
            for number in self._not_shown_before(version):
                self._show(number, slot)
            self._show(version, slot)
        if self._checkpoint is not None and self._checkpoint.due(version):  # and decided upon, where `stop` is asked
            self._checkpoint.save(self._state, self._rule, version, slot, made_by)

    def _hasher(self, version: int, slot: int) -> Hasher:
        """The hasher of the place where that version lies: its slot, and its copy of the optimizer's state."""
        place = slot, version % len(self._state.optimizer_states)
        if place not in self._hashers:
            self._hashers[place] = Hasher(self._state.state_dict(version, slot))
        return self._hashers[place]

    def _is_shown(self, version: int) -> bool:
        return version in self._traced or (self._evaluate_every > 0 and version % self._evaluate_every == 0)

    def _not_shown_before(self, version: int) -> Sequence[int]:
        """Versions before that one that are due and have not been shown.

        Under a rule in place versions are not made in order, and the worker of an earlier one may be late, or have
        failed. Nobody waits for it: the model as it is now is shown for that version, so that no evaluation is missed.
        """
        if self._rule.versioned:
            return ()
        first, every = self._state.control[Word.OBSERVED] + 1, self._evaluate_every
        due = range(first + -first % every, version, every) if every else ()
        traced = self._traced_in_order
        return sorted({*due, *traced[bisect_left(traced, first) : bisect_left(traced, version)]})

    def _show(self, version: int, slot: int) -> None:
        """Copy a version out for the parent to evaluate, once it has evaluated the last one."""
        control = self._state.control
        control.wait_until(lambda: control.observe(Word.EVALUATED) == control[Word.OBSERVED], self._worker)
        again = control[Word.OBSERVED] >= version  # a worker has shown it, and died before it published the version
        if again and (self._rule.same_bits or not self._rule.versioned):
            return
        self._state.show(version, slot)
        if again:
            control.publish(Word.EVALUATED, version - 1)
        else:
            control.publish(Word.OBSERVED, version)
        if self._stops:
            control.wait_until(lambda: control.observe(Word.EVALUATED) >= version, self._worker)
