"""Data sets of the rows of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import problems
import torch
from torch.utils.data import Dataset

SAMPLES, RECORD = 64, 9


def written(folder: Path) -> Path:
    """The file, in that folder."""
    x, y = problems.data(SAMPLES)
    rows = np.concatenate([x.numpy(), y.numpy()[:, None].astype("float32")], axis=1)
    rows.tofile(folder / "rows.bin")
    return folder / "rows.bin"


def as_sample(record: bytes) -> Any:
    """(8 numbers, class) of a row."""
    row = torch.frombuffer(bytearray(record), dtype=torch.float32)
    return row[:8], row[8].long()


class Opened(Dataset[Any]):
    """Rows of a file of numbers, which is opened once in each process."""

    file: BinaryIO | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(4 * RECORD * i)
        return as_sample(self.file.read(4 * RECORD))

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Loaded(Opened):
    """All rows at once, when the first is asked for; and who did that."""

    rows: torch.Tensor | None = None

    def __getitem__(self, i: int) -> Any:
        if self.rows is None:
            with self.path.with_suffix(".log").open("a") as log:
                log.write(f"{os.getpid()}\n")
            self.rows = torch.from_numpy(np.fromfile(self.path, "float32").reshape(SAMPLES, RECORD))
        return self.rows[i, :8], self.rows[i, 8].long()
