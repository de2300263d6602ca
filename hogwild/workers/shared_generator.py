"""Torch's default generator, which all threads of a process share.

Where the bits are promised no update may draw from it: what it drew would depend on who came first. The parent's
evaluation may, for it puts the generator back; what was computed meanwhile is computed again.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hogwild.errors import NotReproducible
from hogwild.shared.tickets import Control
from hogwild.shared.words import Word


class SharedGenerator:
    """Watches the generator from one worker thread. Made while a version is evaluated, it waits until that is done."""

    def __init__(self, control: Control, worker: int, rule: str) -> None:
        self._control = control
        self._worker = worker
        self._rule = rule
        self._untouched = torch.empty(0)
        control.wait_until(self._note, worker)

    def moved(self, update: int) -> bool:
        """True when an evaluation drew while that update was computed; the generator is back, compute it again.

        Raises:
            NotReproducible: that update drew, or one that ran beside it.
            Aborted: the run has failed.
        """
        if torch.equal(self._untouched, torch.get_rng_state()):
            return False
        self._control.wait_until(partial(self._is_back, update), self._worker)
        return True

    def _note(self) -> bool:
        state = self._state()
        if state is not None:
            self._untouched = state
        return state is not None

    def _is_back(self, update: int) -> bool:
        state = self._state()
        if state is not None and not torch.equal(self._untouched, state):
            raise NotReproducible(
                f"torch's default generator, which all threads share, was drawn from by update {update} or one that "
                f"ran beside it, so {self._rule} cannot give the same bits; use kind='processes', or "
                f"hogwild.worker_info().generator"
            )
        return state is not None

    def _state(self) -> Tensor | None:
        """The generator's state; None where a version may have been under evaluation when it was read."""
        shown = self._control[Word.OBSERVED]
        idle = self._control.observe(Word.EVALUATED) == shown
        state = torch.get_rng_state()
        return state if idle and self._control[Word.OBSERVED] == shown else None
