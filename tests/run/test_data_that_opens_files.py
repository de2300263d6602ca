"""A data set that opens its file when it is first indexed: nothing before the run may open it for the workers."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, defaultdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from traits import NAMES

import hogwild
from hogwild.data.sources import as_source
from hogwild.run.data_before import DataBefore

SAMPLES, RECORD = 64, 9
ADVICE = r"; kind='threads' sends nothing, and processes can open or make for themselves what __getstate__ leaves out$"
UNSENT = (
    r"^data cannot be sent to worker processes: TypeError: cannot pickle '.*Buffered\w+' (object|instances)" + ADVICE
)


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


def test_one_with_a_lock_is_told_the_same() -> None:
    class Locked(Dataset[Any]):
        def __init__(self) -> None:
            self.rows, self.lock = problems.data(SAMPLES), threading.Lock()

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, i: int) -> Any:
            with self.lock:
                return self.rows[0][i], self.rows[1][i]

    with pytest.raises(hogwild.ArgumentError, match=r"^data cannot be sent .*: TypeError: .*lock' object" + ADVICE):
        problems.train(data=Locked(), kind="processes")
    assert problems.train(data=Locked(), kind="threads", updates=4).updates == 4


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


class Loaded(Opened):
    """All rows at once, when the first is asked for; and who did that."""

    rows: torch.Tensor | None = None

    def __getitem__(self, i: int) -> Any:
        if self.rows is None:
            with self.path.with_suffix(".log").open("a") as log:
                log.write(f"{os.getpid()}\n")
            self.rows = torch.from_numpy(np.fromfile(self.path, "float32").reshape(SAMPLES, RECORD))
        return self.rows[i, :8], self.rows[i, 8].long()


@pytest.mark.parametrize("update", NAMES)
def test_what_it_loads_is_loaded_once_for_all_workers(update: str, path: Path) -> None:
    run = problems.train(data=Loaded(path), update=update, kind="processes", workers=2, updates=12)
    assert run.updates == 12
    assert path.with_suffix(".log").read_text().split() == [str(os.getpid())]


class Once(Opened):
    """Whose file a process may open once."""

    open_here: ClassVar[set[Path]] = set()

    def __getitem__(self, i: int) -> Any:
        if self.file is None:
            assert self.path not in self.open_here, "it is open in this process"
            self.open_here.add(self.path)
        return super().__getitem__(i)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __del__(self) -> None:
        super().__del__()
        self.open_here.discard(self.path)


@pytest.mark.parametrize("update", NAMES)
def test_a_file_is_not_opened_a_second_time_in_a_process(update: str, path: Path) -> None:
    data = Once(path)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"right": float(model(data[0][0]).argmax() == data[0][1])}

    for _ in range(2):
        run = problems.train(data=data, update=update, kind="processes", workers=1, updates=8, evaluate=evaluate)
        assert run.updates == 8


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
        numbers = torch.frombuffer(bytearray(file.read(4 * RECORD)), dtype=torch.float32)
        return numbers[:8], numbers[8].long()


def several(path: Path) -> Dataset[Any]:
    return ConcatDataset([Opened(path), Subset(InShards(path), [1, 70])])


@pytest.mark.parametrize("made", [InShards, several])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_it_keeps_in_lists_and_in_others_is_put_back(made: Any, path: Path) -> None:
    data = made(path)
    for _ in range(2):
        assert problems.train(data=data, update="ordered", kind="processes", updates=16).updates == 16


def test_what_cannot_be_sent_all_the_same_is_left_as_it_is(path: Path) -> None:
    class Locked(Opened):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.lock = threading.Lock()

    data = Locked(path)
    with pytest.raises(hogwild.ArgumentError, match="cannot pickle '_thread.lock'"):
        problems.train(data=data, kind="processes")
    assert data.file is not None and not data.file.closed


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


class Numbered(Opened):
    """Whose file is known by its number."""

    number: int | None = None

    def __getitem__(self, i: int) -> Any:
        if self.number is None:
            self.number = os.open(self.path, os.O_RDONLY)
        row = torch.frombuffer(bytearray(os.pread(self.number, 4 * RECORD, 4 * RECORD * i)), dtype=torch.float32)
        return row[:8], row[8].long()


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
        row = torch.frombuffer(bytearray(self.reader.read(4 * RECORD * i, 4 * RECORD)), dtype=torch.float32)
        return row[:8], row[8].long()


@pytest.mark.parametrize("made", [InSlots, InNamespace, InDicts, InClosure])
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


def test_one_with_many_lists_is_looked_at_in_no_time() -> None:
    class Listed(Dataset[Any]):
        def __init__(self) -> None:
            self.rows = [[float(i)] * 8 for i in range(100_000)]
            self.nested = [[float(i)] * 500 for i in range(400)]

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, i: int) -> Any:
            return torch.tensor(self.rows[i]), torch.tensor(i % 3)

    began = time.process_time()
    DataBefore(as_source(Listed(), batch_size=8, shuffle=True, seed=0, collate=None))
    assert time.process_time() - began < 1


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
    assert not before.is_known_by_number()


def test_small_arrays_are_put_back_with_the_rest(path: Path) -> None:
    data = Flagged(path)
    for _ in range(2):
        assert problems.train(data=data, update="ordered", kind="processes", epochs=2).kind == "processes"
    assert len(data.samples) == data.has.sum() == data.as_well.sum()
