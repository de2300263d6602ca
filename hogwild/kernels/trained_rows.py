"""The rows of a table that a ticket trains: read at a version, and what became of them added to the next version.

    read          values → (fence) → words → what the logs kept
    write         rows and what they hold → count → (fence) → words → (fence)
                  → row += what became of it − what it held at the version that was read

The protocol is that of `hogwild.shared.tables`, in one pass over the rows to read them and one to write them, a few
rows at a time. Nothing is copied on the way, for what a row held at the version that was read stands in the logs.
"""

from __future__ import annotations

import numpy as np

from hogwild.kernels.kernel import Array, compiled
from hogwild.shared.tables import RowTable


class TrainedRows:
    """Reads and writes rows of one table; `rows` are int64 (n,), each once and inside, and values (n, width)."""

    def __init__(self, table: RowTable) -> None:
        self._passes = compiled("passes")
        self._table = table
        logs = table.logs
        self._words: tuple[Array, Array, Array] = table.values.numpy(), table.newest, logs.words
        self._named, self._kept = logs.rows, (logs.before, logs.old.numpy())

    def read(self, rows: Array, version: int, into: Array) -> None:
        """Copy rows at that version."""
        with self._table.ordering():
            gone = self._passes.read_rows(*self._words, *self._kept, rows, version, into)
        if gone:
            raise RuntimeError(f"version {version} of a table cannot be read any more; {gone} is not logged now")

    def write(self, made: int, rows: Array, version: int, after: Array, *, check: bool = True) -> bool:
        """Add to that version, which was begun, what became of rows that were read at `version`.

        Returns:
            False where a value of `after` is NaN or infinite, and `check` is set: then the version is to be begun
            again, which puts back what of it is written.
        """
        with self._table.ordering():
            own = made, rows, version, after, check
            return bool(self._passes.write_rows(*self._words, self._named, *self._kept, *own))


def compile_passes(values: Array) -> None:
    """Have the passes over a table of that dtype and form compiled, and kept on disk, before any worker needs them."""
    passes, rows, words = compiled("passes"), np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    table = np.zeros((1, *values.shape[1:]), values.dtype)  # also where `values` has no row
    own, kept, after = (table, np.zeros(1, np.int64), np.zeros((1, 2), np.int64)), (words, table[None]), table.copy()
    passes.read_rows(*own, *kept, rows, 0, after)
    passes.write_rows(*own, words, *kept, 1, rows, 0, after, True)
