"""Which rows of a table differ between two copies of it, so that a new version costs the rows and not the table.

    last[row]      the newest version for which an update wrote that row, or began to
    whole[copy]    a version from which the copy differs only in rows that were written since; −1: none

Invariant: a row of a copy differs from the newest version only where last[row] > whole[copy]. An update enters its rows
in `last` before it writes any of them. When version v + 1 is complete in a copy, v is entered in `whole`: v + 1 is not
published yet, and may come to be made by another update, in another copy. So whoever is killed leaves rows that are
copied once more than need be, and none that is not.
What protects it: versions are made one at a time, and only who makes one writes here. Each word is written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hogwild.shared.arena import Arena, Space
from hogwild.shared.layout import Layout


class RowVersions:
    """The rows of the tables among the parameters, those whose gradients are sparse.

    Args:
        layout: of the parameters.
        tables: the positions of the tables.
        copies: of each: slots, then copies of the optimizer's state.
        arena, offset: where the words lie.
    """

    def __init__(self, layout: Layout, tables: Iterable[int], copies: int, arena: Arena, offset: int) -> None:
        places = _Places(layout, tables, copies)
        self.whole = arena.words(offset + places.whole, copies)
        self._last = {
            i: arena.array(offset + place, layout.entries[i].shape[0], np.dtype(np.int64))
            for i, place in places.last.items()
        }

    @staticmethod
    def size(layout: Layout, tables: Iterable[int], copies: int) -> int:
        """Bytes of the words."""
        return _Places(layout, tables, copies).nbytes

    def prepare(self) -> None:
        """Before any worker starts: nothing is known of any copy."""
        for copy in range(len(self.whole)):
            self.whole[copy] = -1

    def begin(self, gradients: Sequence[Tensor | None], version: int) -> None:
        """Before anything of that version is written: these gradients will make it."""
        for i, last in self._last.items():
            gradient = gradients[i]
            if gradient is not None and gradient.is_sparse:
                last[gradient._indices()[0].numpy()] = version
            elif gradient is not None:
                last[:] = version

    def complete(self, copies: Iterable[int], version: int) -> None:
        """Those copies hold that version, but for the rows of the one that is being made."""
        for copy in copies:
            self.whole[copy] = version

    def bring(self, copy: int, i: int, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make parameter i, or its state, in that copy as it is in the newest version: (from, to) pairs.

        Of what has the shape of a table, only rows that may differ are copied; all else is copied whole.
        """
        last = self._last.get(i)
        if last is None or not pairs:
            for source, target in pairs:
                target.copy_(source)
            return
        rows = torch.from_numpy(np.flatnonzero(last > self.whole[copy]))
        for source, target in pairs:
            if target.dim() and len(target) == len(last):
                target.index_copy_(0, rows, source.index_select(0, rows))
            else:
                target.copy_(source)


class _Places:
    def __init__(self, layout: Layout, tables: Iterable[int], copies: int) -> None:
        space = Space()
        self.whole = space.reserve(8 * copies)
        self.last = {i: space.reserve(8 * layout.entries[i].shape[0]) for i in tables}
        self.nbytes = space.nbytes
