"""What a data set has opened where batches are tried is put back before it is sent, wherever it keeps it."""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict, deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import problems
import pytest
import torch
from rows_in_a_file import RECORD, SAMPLES, Loaded, Opened, as_sample, written
from torch.utils.data import ConcatDataset, Dataset, Subset
from traits import NAMES

from hogwild.data import before
from hogwild.data.before import DataBefore
from hogwild.data.holders import Budget, Holder, holders_of
from hogwild.data.sources import as_source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path)


class InShards(Dataset[Any]):
    """Several, by whatever holds them; those that are read are kept in a list and in a dict."""

    def __init__(self, path: Path) -> None:
        self.paths = [path, path]
        self.opened: list[BinaryIO | None] = [None, None]
        self.by_name: dict[str, BinaryIO] = {}

    def __len__(self) -> int:
        return 2 * SAMPLES

    def __getitem__(self, i: int) -> Any:
        shard, row = divmod(i, SAMPLES)
        if self.opened[shard] is None:
            self.opened[shard] = self.by_name[str(shard)] = self.paths[shard].open("rb")
        file = self.opened[shard]
        assert file is not None
        file.seek(4 * RECORD * row)
        return as_sample(file.read(4 * RECORD))


def several(path: Path) -> Dataset[Any]:
    return ConcatDataset([Opened(path), Subset(InShards(path), [1, 70])])


@pytest.mark.parametrize("made", [InShards, several])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_it_keeps_in_lists_and_in_others_is_put_back(made: Any, path: Path) -> None:
    data = made(path)
    for _ in range(2):
        assert problems.train(data=data, update="ordered", kind="processes", updates=16).updates == 16


class Numbered(Opened):
    """Whose file is known by its number."""

    number: int | None = None

    def __getitem__(self, i: int) -> Any:
        if self.number is None:
            self.number = os.open(self.path, os.O_RDONLY)
        return as_sample(os.pread(self.number, 4 * RECORD, 4 * RECORD * i))


class InSlots:
    __slots__ = ("__file", "path")

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, at: int, count: int) -> bytes:
        if not hasattr(self, "_InSlots__file"):
            self.__file = self.path.open("rb")
        self.__file.seek(at)
        return self.__file.read(count)


class InNamespace:
    def __init__(self, path: Path) -> None:
        self.own = SimpleNamespace(path=path, file=None)

    def read(self, at: int, count: int) -> bytes:
        self.own.file = self.own.file or self.own.path.open("rb")
        self.own.file.seek(at)
        return self.own.file.read(count)


class InDicts:
    """The newest last, as in a cache of files; and some in a long list."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache: OrderedDict[Path, BinaryIO] = OrderedDict()
        self.all: defaultdict[Path, list[BinaryIO]] = defaultdict(list)
        self.by_row: list[BinaryIO | None] = [None] * 5000

    def read(self, at: int, count: int) -> bytes:
        if self.path not in self.cache:
            self.cache[self.path] = self.path.open("rb")
            self.all[self.path].append(self.cache[self.path])
        self.cache.move_to_end(self.path)
        self.by_row[at] = self.cache[self.path]
        self.cache[self.path].seek(at)
        return self.cache[self.path].read(count)


class InDeque:
    """The last files that were used."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, deque[BinaryIO](maxlen=2)

    def read(self, at: int, count: int) -> bytes:
        if not self.last:
            self.last.append(self.path.open("rb"))
        self.last[-1].seek(at)
        return self.last[-1].read(count)


class InClosure:
    def __init__(self, path: Path) -> None:
        file: BinaryIO | None = None

        def read(at: int, count: int) -> bytes:
            nonlocal file
            file = file or path.open("rb")
            file.seek(at)
            return file.read(count)

        self.read = partial(read)


class ByReader(Dataset[Any]):
    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        return as_sample(self.reader.read(4 * RECORD * i, 4 * RECORD))


@pytest.mark.parametrize("made", [InSlots, InNamespace, InDicts, InDeque, InClosure])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_wherever_it_keeps_a_file_it_is_put_back(made: Any, path: Path) -> None:
    data = ByReader(made(path))
    expected = problems.train(data=problems.data(SAMPLES), update="ordered", workers=1, updates=12).digest
    for _ in range(2):
        assert problems.train(data=data, update="ordered", kind="processes", updates=12).digest == expected


@pytest.mark.parametrize("update", NAMES)
def test_the_number_of_a_file_is_not_sent(update: str, path: Path) -> None:
    """It is one of another file there, or of none."""
    data = Numbered(path)
    expected = problems.train(data=problems.data(SAMPLES), update=update, workers=1, updates=12).digest
    for _ in range(2):
        assert problems.train(data=data, update=update, kind="processes", workers=1, updates=12).digest == expected
        assert data.number is None


class Counted(Loaded):
    """And how many samples were asked for; what that comes to is no file's number."""

    asked = 0

    def __getitem__(self, i: int) -> Any:
        self.asked += 1
        return super().__getitem__(i)


@pytest.mark.parametrize("first", [-14, -12, -11, -10, 0, 1 << 40])
def test_other_numbers_are_sent_with_what_was_loaded(first: int, path: Path) -> None:
    """As those of the memory that workers share, which has been opened since, too."""
    data = Counted(path)
    data.asked = first
    problems.train(data=data, update="ordered", kind="processes", workers=2, updates=12, batch_size=8)
    assert path.with_suffix(".log").read_text().split() == [str(os.getpid())]


class Flagged(Numbered):
    """Which keeps its samples, and says in an array and in a tensor which of them it has."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has, self.as_well = np.zeros(SAMPLES, bool), torch.zeros(SAMPLES, dtype=torch.bool)
        self.samples: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if not self.has[i] or not self.as_well[i]:
            self.samples[i] = super().__getitem__(i)
            self.has[i] = self.as_well[i] = True
        return self.samples[i]


def test_small_arrays_are_put_back_with_the_rest(path: Path) -> None:
    data = Flagged(path)
    for _ in range(2):
        assert problems.train(data=data, update="ordered", kind="processes", epochs=2).kind == "processes"
    assert len(data.samples) == data.has.sum() == data.as_well.sum()


def test_of_one_with_many_lists_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listed(Dataset[Any]):
        def __init__(self) -> None:
            self.rows = [[float(i)] * 8 for i in range(100_000)]
            self.nested = [[float(i)] * 500 for i in range(400)]

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, i: int) -> Any:
            return torch.tensor(self.rows[i]), torch.tensor(i % 3)

    looked_at, held = [], []

    def counted(one: Any, budget: Budget) -> list[Holder]:
        looked_at.append(one)
        found = holders_of(one, budget)
        held.extend(value for holder in found for value in holder.held().values())
        return found

    monkeypatch.setattr(before, "holders_of", counted)
    DataBefore(as_source(Listed(), batch_size=8, shuffle=True, seed=0, collate=None))
    assert 400 < len(looked_at) < 420, "all 400 lists of `nested`, and none of the 100,000 of `rows`"
    assert len(held) < 410 * 510


class Awkward(Dataset[Any]):
    """Whose parts run code of the user's where they are read."""

    class Expiring(OrderedDict[str, int]):
        def __getitem__(self, key: str) -> int:
            raise KeyError(f"{key} has expired")

    class Slotted:
        __slots__ = ("value",)

    class Shadowed(Slotted):
        @property
        def value(self) -> int:  # type: ignore[override]
            raise RuntimeError("not now")

    def __init__(self) -> None:
        self.rows = problems.data(SAMPLES)
        self.parts = [self.Expiring(a=1), self.Shadowed(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        return self.rows[0][i], self.rows[1][i]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_raises_where_it_is_read_is_left_alone() -> None:
    before = DataBefore(as_source(Awkward(), batch_size=8, shuffle=True, seed=0, collate=None))
    before.put_back()
    assert not before.holds_new_file_number()
