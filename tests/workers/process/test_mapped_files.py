"""What is mapped from a file is mapped again by worker processes, and never copied into memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import problems
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hogwild import ArgumentError
from hogwild.data.sources import own_copy
from hogwild.shared.mapped_files import MappedFiles
from hogwild.workers.process.package import Package
from hogwild.workers.process.twins import twins_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="which memory is a file's is told on Linux only")

SHAPE = 40_000, 8  # 1.3 MB
LARGEST = 100_000  # bytes that are sent without the file
MADE = {
    "a map": lambda x: x,
    "a piece": lambda x: x[1001:39_000],
    "a piece without its class": lambda x: np.asarray(x[1001:39_000]),
    "with gaps": lambda x: x[::2, 1:],
    "turned": lambda x: x.T,
    "a tensor": torch.from_numpy,
    "a tensor of a piece": lambda x: torch.from_numpy(x[1001:, 2:]),
    "a piece of a tensor": lambda x: torch.from_numpy(x)[7:, 3:],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    whole = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    (tmp_path / "x y").write_bytes(b"head" * 25 + whole.tobytes())
    return tmp_path / "x y"


def mapped(path: Path, mode: Any = "r+") -> np.memmap:
    return np.memmap(path, np.float32, mode, offset=100, shape=SHAPE)


def array_of(value: Any) -> np.ndarray:
    return value.numpy() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("made", MADE)
def test_a_worker_maps_the_file_again(path, made):
    value = MADE[made](mapped(path))
    package = Package({"value": value}, {})
    found = package.open({})["value"]
    package.close()
    assert package.arena.nbytes < LARGEST
    assert type(found) is type(value) and np.array_equal(array_of(found), array_of(value))
    assert array_of(found).strides == array_of(value).strides
    assert array_of(found).ctypes.data % 4096 == array_of(value).ctypes.data % 4096


def test_what_a_worker_writes_is_its_own(path):
    before, value = path.read_bytes(), mapped(path, "r")
    package = Package({"value": value, "again": torch.from_numpy(mapped(path))}, {})
    opened = package.open({})
    opened["value"][:] = 5
    assert path.read_bytes() == before and value[0, 0] != 5


def gone(path: Path) -> None:
    path.unlink()


def another(path: Path) -> None:
    (path.parent / "new").write_bytes(bytes(path.stat().st_size))
    (path.parent / "new").replace(path)


@pytest.mark.parametrize("becomes", [gone, another])
def test_a_file_that_is_no_longer_there_is_copied(path, becomes):
    value = mapped(path)
    expected = np.array(value)
    becomes(path)
    assert np.array_equal(Package({"value": value}, {}).open({})["value"], expected)


def test_what_was_written_to_a_private_map_is_sent(path):
    value = mapped(path, "c")
    value[39_999] = 7
    package = Package({"value": value}, {})
    assert np.array_equal(package.open({})["value"], value) and package.arena.nbytes > LARGEST


def test_many_files_are_mapped_as_far_as_numbers_of_files_go(tmp_path):
    values = []
    for number in range(40):
        np.full(20_000, number, np.float32).tofile(tmp_path / str(number))
        values.append(np.memmap(tmp_path / str(number), np.float32, "r"))
    opened = Package({"values": values}, {}).open({})["values"]
    assert all(np.array_equal(one, value) for one, value in zip(opened, values, strict=True))


class Rows(Dataset):
    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.x[i]), self.y[i]


class Batches:
    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def batch(self, update: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.y), (16,), generator=generator)
        return torch.from_numpy(self.x[rows.numpy()]), self.y[rows]


@pytest.mark.parametrize("make", [lambda x, y: (x, y.numpy()), Rows, Batches], ids=["arrays", "a data set", "a source"])
def test_a_run_has_the_bits_of_one_in_memory(path, make, recwarn):
    y = torch.arange(SHAPE[0]) % 3
    settings = {"update": "ordered", "kind": "processes", "updates": 20, "recheck": 0.5}
    digests = [problems.train(data=make(x, y), **settings).digest for x in (mapped(path, "r"), np.array(mapped(path)))]
    digests.append(problems.train(data=make(mapped(path, "r"), y), **settings | {"kind": "threads"}).digest)
    assert len(set(digests)) == 1
    assert not [one for one in recwarn if "not writable" in str(one.message)]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_what_is_written_to_a_copy_changes_neither_the_file_nor_the_map(path, mode):
    """Of a map that may only be read, the program would die."""
    before, x = path.read_bytes(), mapped(path, mode)
    twins = twins_of({"source": Batches(x, torch.zeros(3)), "held": torch.from_numpy(x[7:])}, None, {})
    of_source = twins_of({"source": Batches(x, torch.zeros(3))}, Batches(x, torch.zeros(3)), {})
    assert twins is not None and of_source is not None
    copies = own_copy(Batches(x, torch.zeros(3))).x, twins["source"].x, of_source["source"].x  # type: ignore[attr-defined]
    assert all(np.array_equal(copy, x) for copy in copies) and np.array_equal(twins["held"].numpy(), x[7:])
    for copy in copies:
        torch.from_numpy(copy).fill_(5)
    assert np.all(twins["held"].numpy() == 5), "it is the memory that the twin of the source has"
    assert path.read_bytes() == before and not np.any(x == 5)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_what_is_larger_than_memory_is_loaded_by_nobody(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 39)
    x = np.memmap(path, np.float32, "r", shape=(1 << 34, 8))
    package = Package({"x": x}, {})
    twins = twins_of({"x": x, "tensor": torch.from_numpy(x)}, None, {})
    assert twins is not None
    maps = own_copy(Batches(x, torch.zeros(3))).x, package.open({})["x"], twins["x"], twins["tensor"]  # type: ignore[attr-defined]
    assert all(one.shape == x.shape and one[-1, -1] == 0 for one in maps)


def test_many_pieces_of_a_file_take_one_file_descriptor(path):
    values = [one for x in [mapped(path, "r")] for one in np.split(x, 1_000)]
    package = Package({"values": values}, {})
    before = psutil.Process().num_fds()
    found = package.open({})["values"]
    assert all(map(np.array_equal, found, values)) and psutil.Process().num_fds() <= before + 1
    copied = own_copy(Batches(values, torch.zeros(3))).x  # type: ignore[attr-defined]
    assert all(map(np.array_equal, copied, values)) and psutil.Process().num_fds() <= before + 2


def test_a_file_that_became_shorter_is_told(path):
    package = Package({"x": mapped(path, "r")}, {})
    os.truncate(path, 1_000)
    with pytest.raises(ArgumentError, match=r"a file that data lie in, mapped \(np.memmap\), has become shorter"):
        package.open({})


@pytest.mark.parametrize("name", ["two\u2028lines", "next\x85line", " ", "x (deleted)", "a\nb"])
def test_any_name_will_do(tmp_path, path, name):
    path = path.rename(tmp_path / name)
    value = mapped(path, "r")
    assert np.array_equal(Package({"value": value}, {}).open({})["value"], value)


def test_another_file_of_the_name_that_a_lost_one_is_listed_under_is_not_taken(tmp_path, path):
    value = mapped(path, "r")
    path.unlink()
    (tmp_path / f"{path.name} (deleted)").write_bytes(bytes(value.nbytes + 100))
    assert MappedFiles().piece(value.reshape(-1).view(np.uint8)) is None


def test_memory_of_no_file_is_none():
    assert MappedFiles().piece(np.zeros(1 << 20, np.uint8)) is None
