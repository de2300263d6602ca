"""The accounts of an audit, added up in shared memory: what all workers together computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hogwild.shared.arena import Arena
from hogwild.shared.layout import Layout


class Totals:
    """The workers' accounts together, in shared memory.

    Of parameter i: `computed[i]` is Σ d and `rounding[i]` bounds what the steps rounded, float64 of shape [V];
    `updates[i]` is how many gradients reached it.
    """

    _REPORTED, _NANOSECONDS, _HEAD = 0, 1, 2

    def __init__(self, layout: Layout, arena: Arena, offset: int) -> None:
        numels = [entry.numel for entry in layout.entries]
        self.words = arena.words(offset, self._HEAD)
        self.updates = arena.words(offset + 8 * self._HEAD, len(numels))
        values = arena.tensor(offset + 8 * (self._HEAD + len(numels)), 2 * sum(numels), torch.float64)
        self.computed = torch.split(values[: sum(numels)], numels)
        self.rounding = torch.split(values[sum(numels) :], numels)

    @classmethod
    def size(cls, layout: Layout) -> int:
        """Bytes that it takes in the arena."""
        return 8 * (cls._HEAD + sum(1 + 2 * entry.numel for entry in layout.entries))

    @property
    def reported(self) -> int:
        """Workers whose account is in it."""
        return self.words[self._REPORTED]

    @property
    def seconds(self) -> float:
        """What keeping the accounts cost, in seconds of the workers' time."""
        return self.words[self._NANOSECONDS] / 1e9

    def add(
        self, computed: Sequence[Tensor], rounding: Sequence[Tensor], updates: Sequence[int], nanoseconds: int
    ) -> None:
        """Add one worker's account, which took it that long. Called under the ticket lock."""
        for i in range(len(self.computed)):
            self.computed[i].add_(computed[i])
            self.rounding[i].add_(rounding[i])
            self.updates[i] += updates[i]
        self.words[self._NANOSECONDS] += nanoseconds
        self.words[self._REPORTED] += 1
