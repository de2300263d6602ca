"""Warns, once, of a loss that has risen above where it began, and says what may help."""

from __future__ import annotations

import logging
import time

from hogwild.errors import in_a_sentence
from hogwild.rules.any_age import AnyAge
from hogwild.rules.base import Rule
from hogwild.run.divergence import divergence
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word

_EVERY = 1.0  # seconds between two looks
_log = logging.getLogger("hogwild")


class LossWatch:
    """Looks at the journal's losses while a run is made.

    Args:
        state: the parent's view of the shared memory.
        rule: of the run.
        kernel: whether a kernel trains, whose steps are not clipped, and for whose delay nothing makes up.
    """

    def __init__(self, state: SharedState, rule: Rule, *, kernel: bool) -> None:
        self._state = state
        self._rule = rule
        self._kernel = kernel
        self._looked = time.monotonic()
        self._told = False

    def look(self) -> None:
        """Warn if the loss has risen, when it is time to look."""
        if time.monotonic() - self._looked > _EVERY:
            self._looked = time.monotonic()
            self.tell()

    def tell(self) -> None:
        """Warn if the loss has risen, unless that was said."""
        if self._told:
            return
        total = -(-self._state.control[Word.TOTAL] // self._rule.tickets_per_update)
        found = divergence(self._state.journal.losses(self._rule.newest(self._state)[0]), total)
        if found is not None:
            self._told = True
            _log.warning("%s; %s may help", found, in_a_sentence(self._ways(), "or"))

    def _ways(self) -> list[str]:
        """Less delay, or something that makes up for it, and smaller steps."""
        rule, workers = self._rule, self._state.plan.workers
        ways: list[str] = []
        if rule.staleness:
            ways = ["compensation='auto'", "less staleness"]
        elif workers > 1 and isinstance(rule, AnyAge):
            ways = ["compensation='workers'", "fewer workers"]
        if self._kernel:
            return [*ways[1:], "a lower learning rate", "other initial weights"]
        if rule.made_up_for(workers).updates:
            ways = []
        return [*ways, "a lower learning rate", "clip_grad_norm"]
