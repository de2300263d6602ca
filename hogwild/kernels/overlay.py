"""The rows that a ticket touches, by themselves: a kernel runs on them as it would on whole tables.

index arrays  →  the rows they name, each once  →  copies of those rows, and the arrays renumbered  →  step
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hogwild.kernels.kernel import Array, Drawn, Kernel


class Numbering:
    """Gives each row that a ticket names a number of its own, from 0, in the order in which rows are last named.

    It keeps one number a row of the largest table; each worker has one of its own.
    """

    def __init__(self, kernel: Kernel, rows: Mapping[str, int]) -> None:
        self._kernel = kernel
        groups = {arrays: rows[table] for table, arrays in kernel.tables.items()}
        self._places = {arrays: torch.zeros(count, dtype=torch.int64) for arrays, count in groups.items()}

    def number(self, drawn: Drawn) -> tuple[dict[str, Tensor], dict[str, Array]]:
        """(table → the rows it is touched in, int64 (n,), each once; `drawn` with its index arrays renumbered)."""
        named: dict[tuple[str, ...], Tensor] = {}
        renumbered = dict(drawn)
        for arrays, place in self._places.items():
            parts = [drawn[array] for array in arrays]
            flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]).astype(np.int64, copy=False))
            named[arrays] = rows = _each_once(flat, place)
            place.index_copy_(0, rows, torch.arange(len(rows)))
            numbers = place.index_select(0, flat).to(torch.int32).numpy()
            start = 0
            for array, part in zip(arrays, parts, strict=True):
                own = numbers[start : start + part.size].reshape(part.shape)
                renumbered[array] = own if part.dtype == np.int32 else own.astype(part.dtype)
                start += part.size
        return {table: named[arrays] for table, arrays in self._kernel.tables.items()}, renumbered


def _each_once(flat: Tensor, place: Tensor) -> Tensor:
    """The values of `flat`, each where it comes last."""
    positions = torch.arange(len(flat))
    place.scatter_(0, flat, positions)
    return flat[place.index_select(0, flat) == positions]
