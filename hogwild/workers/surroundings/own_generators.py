"""The random generators of a worker process: seeded by (seed, batch), numpy's and Python's only where something draws.

Torch's default generator is seeded for every batch. Seeding the other two takes 5 µs, and most trainings draw from
neither. So `lazy` ones are left alone, and looked at after every gradient (0.3 µs). The first gradient that moved one
is computed again with both seeded, and from then on both are seeded for every batch.

What holds: a gradient that counts was computed with all three seeded, or without a draw from, and a look at, the two
that were not. Code that asks for the state of one of them finds it seeded. (`from random import getstate` before the
worker began is not seen.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from hogwild.data.generators import GeneratorWatch
from hogwild.data.seeding import seed_generators, seed_others

_READERS: tuple[tuple[Any, str], ...] = ((random, "getstate"), (np.random, "get_state"))


class OwnGenerators:
    """Seeds them, for the one worker of a process. `lazy`: two of them are not seeded."""

    def __init__(self, *, lazy: bool) -> None:
        self.lazy = lazy
        self._number = 0
        self._late = False  # the state was asked for after a draw without a seed
        self._readers: list[Callable[..., Any]] = []
        if lazy:
            seed_others(0)
            self._watch = GeneratorWatch()
            self._untouched = self._watch.look_at_others()
            for module, name in _READERS:
                self._readers.append(getattr(module, name))
                setattr(module, name, partial(self._read, self._readers[-1]))

    def begin(self, number: int) -> None:
        """A batch begins whose draws are decided by that number."""
        if not self.lazy:
            seed_generators(number)
            return
        self._number = number
        torch.default_generator.manual_seed(number)

    def drew_unseeded(self) -> bool:
        """True where the gradient just computed is to be computed again: it drew from one that was not seeded."""
        if self.lazy:
            self.lazy = self._watch.look_at_others() == self._untouched
            return not self.lazy
        late, self._late = self._late, False
        return late

    def close(self) -> None:
        """No more batches: nothing of this stays in the modules of others."""
        for (module, name), read in zip(_READERS, self._readers, strict=False):
            setattr(module, name, read)
        self._readers = []

    def _read(self, read: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Somebody asks for a state: there has to be the one of this batch."""
        if self.lazy:
            self.lazy = False
            self._late = self._watch.look_at_others() != self._untouched
            if not self._late:
                seed_others(self._number)
        return read(*arguments, **named)
