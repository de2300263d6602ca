"""A data set that opens its file when it is first indexed: nothing before the run may open it for the workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from traits import NAMES

import hogwild
from hogwild.workers.package import twin_of

SAMPLES, RECORD = 64, 9
ADVICE = r"; open what it reads in each process, where it is read, and leave that out in __getstate__$"
UNSENT = r"^data cannot be sent to worker processes: TypeError: cannot pickle '_io\.Buffered\w+' object" + ADVICE


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
        row = torch.frombuffer(bytearray(self.file.read(4 * RECORD)), dtype=torch.float32)
        return row[:8], row[8].long()

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    x, y = problems.data(SAMPLES)
    rows = np.concatenate([x.numpy(), y.numpy()[:, None].astype("float32")], axis=1)
    rows.tofile(tmp_path / "rows.bin")
    return tmp_path / "rows.bin"


@pytest.mark.parametrize("kind", ["processes", "auto"])
@pytest.mark.parametrize("update", NAMES)
def test_it_trains_in_processes(update: str, kind: str, path: Path) -> None:
    data = Opened(path)
    run = problems.train(data=data, update=update, kind=kind, workers=1, updates=12)
    assert run.kind == "processes"
    assert data.file is None
    assert run.digest == problems.train(data=problems.data(SAMPLES), update=update, workers=1, updates=12).digest


def test_it_does_so_within_another_and_where_much_is_asked_before_the_run(path: Path) -> None:
    """The curvature is measured, and a batch that holds no numbers is looked for."""
    data = Opened(path)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        at = hogwild.worker_info().update
        return problems.cross_entropy(model, batch) * (float("nan") if at == 5 else 1)

    train = partial(problems.train, data=Subset(data, range(60)), update="ordered", staleness=3, kind="processes")
    with pytest.raises(hogwild.NonFiniteError):
        train(loss=loss, updates=8)
    assert data.file is None
    assert train(updates=8).updates == 8


def test_one_that_is_open_is_refused_and_told_what_helps(path: Path) -> None:
    data = Opened(path)
    data[0]
    for kind in ("processes", "auto"):
        with pytest.raises(hogwild.ArgumentError, match=UNSENT):
            problems.train(data=data, kind=kind)


def test_one_that_leaves_it_out_may_be_open(path: Path) -> None:
    class Sent(Opened):
        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "file": None}

    data = Sent(path)
    data[0]
    assert problems.train(data=data, update="ordered", kind="processes", updates=8).updates == 8


def test_what_cannot_be_sent_trains_in_threads(path: Path) -> None:
    data = Opened(path)
    data[0]
    assert problems.train(data=data, update="ordered", kind="threads", workers=1, updates=8).updates == 8


def test_what_is_large_is_not_copied_for_it() -> None:
    class InMemory(Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = torch.zeros(1 << 16), np.zeros(1 << 16)
            self.names, self.paths = ["a", "b"], [f"{i}.png" for i in range(20_000)]

    data = InMemory()
    twin = twin_of(data)
    assert twin.x.data_ptr() == data.x.data_ptr()
    assert twin.y is data.y
    assert twin.paths is data.paths
    assert twin.names == data.names
    assert twin.names is not data.names


class Owned(Opened):
    """Whose file ends with it."""

    def __del__(self) -> None:
        super().__del__()
        self.path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("update", NAMES)
def test_a_copy_does_not_remove_what_belongs_to_the_data_set(update: str, kind: str, path: Path) -> None:
    data = Owned(path)
    for _ in range(2):
        run = problems.train(data=data, update=update, kind=kind, workers=1, updates=12, max_restarts=0)
        assert (run.updates, run.kind) == (12, kind)
    assert path.exists()
    del data
    assert not path.exists()
