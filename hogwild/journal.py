"""What happened, update by update: one row each, and a digest of the model every so many versions.

Row k of the saved journal made version k + 1: rows stand in commit order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hogwild.memory import Arena

ROW = np.dtype(
    [
        (
            "update",
            "<i8",
        ),  # number of the update, which is that of its batch; -1 in a row that was never written
        ("worker", "<i8"),  # who committed it
        ("version_read", "<i8"),  # the version its gradient was computed on
        ("version", "<i8"),  # the version it made; for rules that race, commits seen just before, plus one
        ("loss", "<f8"),  # of its batch, before the update
    ]
)
DIGEST_BYTES = 32  # SHA-256
_FIELDS = ROW.itemsize // 8


class Journal:
    """The journal of a run that is under way, in shared memory. Each row has one writer.

    Rules with one committer at a time write row `version - 1`; rules that race write row `update`.
    """

    def __init__(self, arena: Arena, rows_at: int, rows: int, digests_at: int, digest_every: int) -> None:
        self._rows = arena.array(rows_at, rows, ROW)
        self._words = arena.words(rows_at, rows * ROW.itemsize // 8)
        self._losses = arena.tensor(rows_at, rows * ROW.itemsize // 8, torch.float64).numpy()
        self.digest_every = digest_every
        self._digests = arena.bytes(digests_at, DIGEST_BYTES * digest_count(rows, digest_every))

    def prepare(self) -> None:
        """Before any worker starts: no row is written."""
        self._rows["update"] = -1

    def write(self, row: int, update: int, worker: int, version_read: int, version: int, loss: float) -> None:
        """Write one row, its update number last."""
        start = row * _FIELDS
        words = self._words
        words[start + 1] = worker
        words[start + 2] = version_read
        words[start + 3] = version
        self._losses[start + 4] = loss
        words[start] = update

    def write_digest(self, version: int, digest: bytes) -> None:
        """Note the digest of a version that is a multiple of `digest_every`."""
        place = DIGEST_BYTES * (version // self.digest_every - 1)
        self._digests[place : place + DIGEST_BYTES] = digest

    def has(self, update: int, rows: int) -> bool:
        """True when one of the first `rows` rows is of that update."""
        return bool(np.any(self._rows["update"][:rows] == update))

    def rows(self) -> NDArray[Any]:
        """A copy of the rows written so far, in commit order."""
        written = self._rows[self._rows["update"] >= 0]
        return written[np.lexsort((written["update"], written["version"]))]

    def recent_loss(self, row: int, count: int) -> float:
        """The mean loss of the last `count` rows before `row` that are written; NaN if none is."""
        rows = self._rows[max(0, row - count) : row]
        losses = rows["loss"][rows["update"] >= 0]
        return float(losses.mean()) if len(losses) else float("nan")

    def digests(self, versions: int) -> dict[int, str]:
        """version → hexadecimal digest, up to `versions`."""
        every = self.digest_every
        return {
            version: bytes(self._digests[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)]).hex()
            for i, version in enumerate(range(every, versions + 1, every))
        }


def digest_count(rows: int, every: int) -> int:
    """How many digests a journal of that many rows holds."""
    return rows // every
