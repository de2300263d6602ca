"""The rows of a table that a ticket trains: read at a version, and what became of them added to the next version.

    read          values → (fence) → words → what the logs kept
    log           rows and what they hold → count → (fence) → words
    add           row += what became of it − what it held at the version that was read

The protocol is that of `hogwild.shared.tables`, in fewer passes: one over the rows to read them, and two to write them.
Nothing is copied on the way, for what a row held at the version that was read stands in the table's own logs.
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
        self._values: Array = table.values.numpy()
        self._newest, logs = table.newest, table.logs
        self._words, self._named, self._before, self._old = logs.words, logs.rows, logs.before, logs.old.numpy()

    def read(self, rows: Array, version: int, into: Array) -> None:
        """Copy rows at that version."""
        passes = self._passes
        passes.copy_rows(self._values, self._newest, rows, version, into)
        with self._table.ordering():
            gone = passes.put_back(self._newest, self._words, self._before, self._old, rows, version, into)
        if gone:
            raise RuntimeError(f"version {version} of a table cannot be read any more; {gone} is not logged now")

    def finite(self, after: Array) -> bool:
        """True where no value is NaN or infinite."""
        return bool(self._passes.finite(after))

    def log(self, made: int, rows: Array) -> None:
        """Log what rows hold, and name that version, which was begun, in their words."""
        place, passes = made % len(self._words), self._passes
        words, named = self._words[place], self._named[place]
        first = int(words[1])
        own = named, self._before[place], self._old[place]
        words[1] = last = passes.log_rows(self._values, self._newest, made, rows, first, *own)
        with self._table.ordering():
            passes.name_rows(self._newest, made, first, last, named)

    def add(self, rows: Array, version: int, after: Array) -> None:
        """Add what became of rows that were read at that version, once they are logged."""
        with self._table.ordering():
            self._passes.add_changes(self._values, self._newest, self._before, self._old, rows, version, after)


def compile_passes(values: Array) -> None:
    """Have the passes over a table of that dtype and form compiled, and kept on disk, before any worker needs them."""
    passes, rows = compiled("passes"), np.zeros(1, np.int64)
    table, newest, words = np.zeros_like(values[:1]), np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    before, old, after = np.zeros((1, 1), np.int64), np.zeros((1, *table.shape), table.dtype), table.copy()
    passes.copy_rows(table, newest, rows, 0, after)
    passes.put_back(newest, words, before, old, rows, 0, after)
    passes.finite(after)
    passes.name_rows(newest, 1, 0, passes.log_rows(table, newest, 1, rows, 0, rows, before[0], old[0]), rows)
    passes.add_changes(table, newest, before, old, rows, 0, after)
