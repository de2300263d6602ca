"""What is mapped from a file is mapped again by worker processes, and never copied into memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import problems
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

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


def test_neither_threads_nor_a_look_beforehand_load_it(path):
    x = mapped(path, "r")
    assert own_copy(Batches(x, torch.zeros(3))).x is x  # type: ignore[attr-defined]
    twins = twins_of({"held": [x]}, None, {})
    assert twins is not None and np.shares_memory(twins["held"][0], x)


def test_memory_of_no_file_is_none():
    assert MappedFiles().piece(np.zeros(1 << 20, np.uint8)) is None
