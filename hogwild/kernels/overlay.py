"""The rows that a ticket touches, by themselves: a kernel runs on them as it would on whole tables.

index arrays  →  the rows they name, each once  →  copies of those rows, and the arrays renumbered  →  step
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hogwild.kernels.kernel import Array, Drawn, Kernel, compiled


class Numbering:
    """Gives each row that a ticket names a number of its own, from 0, in the order in which rows first come.

    It keeps one number a row of the tables; each worker has one of its own.
    """

    def __init__(self, kernel: Kernel, rows: Mapping[str, int]) -> None:
        self._kernel, self._rows = kernel, rows
        groups: dict[tuple[str, ...], int] = {}
        for table, arrays in kernel.tables.items():
            groups[arrays] = min(rows[table], groups.get(arrays, rows[table]))
        self._marks = {arrays: np.zeros(count, np.int64) for arrays, count in groups.items()}
        self._stamp = 0

    def number(self, drawn: Drawn) -> tuple[dict[str, Array], dict[str, Array]]:
        """(table → the rows it is touched in, int64 (n,), each once; `drawn` with its index arrays renumbered).

        Raises:
            ArgumentError: an index array is missing, holds no integers, or counts a row that is outside.
        """
        self._kernel.check_forms(drawn)
        self._stamp += 1
        found: dict[tuple[str, ...], Array] = {}
        renumbered = dict(drawn)
        for arrays, marks in self._marks.items():
            named, count = np.empty(min(len(marks), sum(drawn[array].size for array in arrays)), np.int64), 0
            for array in arrays:
                flat = np.ascontiguousarray(drawn[array])
                # the numbers are those of all rows of the ticket, more than a narrow array may be able to hold
                wide = np.iinfo(flat.dtype).max < len(marks) - 1
                own = renumbered[array] = np.empty(flat.shape, np.int64 if wide else flat.dtype)
                flats = flat.reshape(-1), marks, self._stamp, named, count, own.reshape(-1)
                count = compiled("numbers").number_rows(*flats)
                if count < 0:
                    self._kernel.check(drawn, self._rows)
            found[arrays] = named[:count]
        return {table: found[arrays] for table, arrays in self._kernel.tables.items()}, renumbered
