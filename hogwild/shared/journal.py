"""What happened, update by update: one row each, and the bits of the model, sealed every so many versions.

Row k of the saved journal made version k + 1: rows stand in commit order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.errors import RunDirectoryError, printable
from hogwild.shared.arena import Arena
from hogwild.shared.hashing import MARK_BYTES, Hasher

ROW = np.dtype(
    [
        ("update", "<i8"),  # its number, which is that of its batch; -1 in a row that was never written
        ("worker", "<i8"),  # who computed it; of several micro-batches, the last
        ("version_read", "<i8"),  # the version its gradient was computed on
        ("version", "<i8"),  # the version it made; for rules that race, commits seen just before, plus one
        ("loss", "<f8"),  # of its batch, before the update
    ]
)
DIGEST_BYTES = 32  # SHA-256
_FIELDS = ROW.itemsize // 8


@dataclass(frozen=True)
class Seal:
    """The bits of one version: the digest of the whole, and a mark for each tensor of the state dict, in name order."""

    digest: str
    marks: str

    def differing(self, other: Seal, names: Sequence[str]) -> list[str]:
        """Those of the sorted tensor names whose marks differ."""
        width = 2 * MARK_BYTES
        return [
            name
            for i, name in enumerate(names)
            if self.marks[width * i : width * (i + 1)] != other.marks[width * i : width * (i + 1)]
        ]


class Journal:
    """The journal of a run that is under way, in shared memory. Each row has one writer.

    Rules that make one version at a time write row `version - 1`; rules that race write row `update`.
    """

    def __init__(self, arena: Arena, rows_at: int, rows: int, seals_at: int, digest_every: int, tensors: int) -> None:
        self._rows = arena.array(rows_at, rows, ROW)
        self._words = arena.words(rows_at, rows * _FIELDS)
        self._losses = arena.array(rows_at, rows * _FIELDS, np.dtype(np.float64))
        self.digest_every = digest_every
        self._seal_bytes = seal_bytes(tensors)
        self._seals = arena.tensor(seals_at, self._seal_bytes * (rows // digest_every), torch.uint8)

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

    def write_seal(self, version: int, hasher: Hasher) -> None:
        """Note the bits of a version that is a multiple of `digest_every`; `hasher` is of the slot it lies in."""
        place = self._seal_bytes * (version // self.digest_every - 1)
        self._seals.numpy()[place : place + self._seal_bytes].data[:] = hasher.digest() + hasher.marks()

    def has(self, update: int, rows: int) -> bool:
        """True when one of the first `rows` rows is of that update."""
        return bool(np.any(self._rows["update"][:rows] == update))

    def rows(self, versions: int | None = None) -> NDArray[Any]:
        """A copy of the rows written so far, in commit order.

        Where versions are made one after another, `versions` leaves out the row of one that was never published: its
        worker was killed in between.
        """
        rows = self._rows[:versions]
        written = rows[rows["update"] >= 0]
        return written[np.lexsort((written["update"], written["version"]))]

    def losses(self, rows: int) -> NDArray[np.float64]:
        """The losses in the first `rows` rows, of those that are written, in the order of the updates."""
        first = self._rows[:rows]
        return losses_by_update(first[first["update"] >= 0])

    def recent(self, row: int, count: int) -> NDArray[Any]:
        """A copy of those of the last `count` rows before `row` that are written."""
        rows = self._rows[max(0, row - count) : row]
        return rows[rows["update"] >= 0]

    def seals(self, versions: int) -> dict[int, Seal]:
        """version → its seal, every `digest_every` versions up to `versions`."""
        seals = {}
        for i, version in enumerate(range(self.digest_every, versions + 1, self.digest_every)):
            seal = self._seals[self._seal_bytes * i : self._seal_bytes * (i + 1)].numpy().tobytes()
            seals[version] = Seal(seal[:DIGEST_BYTES].hex(), seal[DIGEST_BYTES:].hex())
        return seals

    def first_rows(self, count: int) -> Tensor:
        """The first rows as an int64 tensor (count, fields), in shared memory: what a checkpoint saves."""
        return torch.from_numpy(self._rows[:count].view(np.int64).reshape(count, _FIELDS))

    def first_seals(self, versions: int) -> Tensor:
        """The bytes of the seals of the first versions, uint8, in shared memory."""
        return self._seals[: self._seal_bytes * (versions // self.digest_every)]


def losses_by_update(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The losses in rows of a journal in the order of the updates, whichever was committed first."""
    return np.asarray(rows["loss"][np.argsort(rows["update"], kind="stable")], np.float64)


def seal_bytes(tensors: int) -> int:
    """Bytes of a seal of that many tensors."""
    return DIGEST_BYTES + MARK_BYTES * tensors


def load_rows(path: Path) -> NDArray[Any]:
    """The rows in a journal.npy; what its header claims is believed only if the file has just so many bytes.

    Raises:
        RunDirectoryError: it is missing, or anything but rows as a run saves them.
    """
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another version of the format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if dtype != ROW or len(shape) != 1:
                raise ValueError(f"it holds other fields than {', '.join(ROW.names or ())}")
            rows = path.stat().st_size - file.tell()
            if shape[0] * ROW.itemsize != rows:
                raise ValueError(f"it claims {shape[0]} rows, and has {rows} bytes of them")
            return np.fromfile(file, ROW, shape[0])
    except (
        Exception
    ) as error:  # numpy reads a header with Python's own parser, which a hostile one can make raise anything
        raise RunDirectoryError(f"{path} is not a journal: {printable(str(error))}") from error
