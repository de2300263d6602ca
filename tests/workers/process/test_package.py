"""Data and models lie in memory once, however many workers there are."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import problems
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from traits import KINDS

import hogwild
from hogwild.run.trial.dry_run import DryRun
from hogwild.workers.process.package import Package

MEGABYTE = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="the proportional set size is known on Linux only")


def own_memory() -> int:
    """Bytes of this process that no other one maps."""
    return psutil.Process().memory_full_info().uss


class Arrays(Dataset):
    """A map-style data set over an array and a tensor, as most are."""

    def __init__(self, x: np.ndarray, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x[index]), self.y[index]


ROWS, COLUMNS = 2048, 4096  # 32 MB of float32
DATA: dict[str, Callable[[int], Any]] = {
    "array": lambda rows: (np.ones((rows, COLUMNS), np.float32), np.zeros(rows, np.int64)),
    "tensor": lambda rows: (torch.ones(rows, COLUMNS), torch.zeros(rows, dtype=torch.int64)),
    "tensor in shared memory": lambda rows: (torch.ones(rows, COLUMNS).share_memory_(), torch.zeros(rows)),
    "mapping": lambda rows: {0: torch.ones(rows, COLUMNS)},
    "data set of arrays": lambda rows: Arrays(np.ones((rows, COLUMNS), np.float32), torch.zeros(rows)),
}


def own_memory_of_the_workers(data: Any) -> int:
    """The most bytes that a worker has to itself near the end of an epoch, when it has read its share of the data."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        hogwild.worker_info().log(own=own_memory())
        return model((batch if isinstance(batch, Tensor) else batch[0])[:, :8]).mean()

    run = hogwild.train(nn.Linear(8, 3), data, loss, optimizer=problems.SGD, epochs=1, batch_size=16, kind="processes")
    return int(max(row["own"] for row in run.logged))


@linux
@pytest.mark.parametrize("form", DATA)
def test_workers_hold_no_copy_of_the_data(form):
    size = 4 * ROWS * COLUMNS
    more = own_memory_of_the_workers(DATA[form](ROWS)) - own_memory_of_the_workers(DATA[form](64))
    assert more < size / 4, f"{more / MEGABYTE:.0f} MB in each worker for {size / MEGABYTE:.0f} MB of data"


@linux
def test_a_worker_more_costs_no_copy_of_the_model():
    """10 M parameters, 40 MB: a worker needs a gradient of its own, and at no time another thing of that size."""

    class Flat(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))
            self.register_buffer("seen", torch.zeros(1))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        hogwild.worker_info().log(own=own_memory(), peak=peak)
        return model.weight.sum() * batch[0].mean()

    def used(size: int) -> tuple[int, int]:
        run = problems.train(Flat(size), loss=loss, kind="processes", update="hogwild", updates=8)
        return max(row["own"] for row in run.logged), max(row["peak"] for row in run.logged)

    (own, peak), (least, least_peak) = used(10_000_000), used(1000)
    parameters = 40_000_000
    assert 1.2 * parameters < peak - least_peak < 2.5 * parameters, "the shared model, and one gradient"
    assert own - least < 1.3 * parameters, "between updates there may be a gradient, and no second model"


def test_threads_train_on_the_callers_own_data():
    x, y = problems.data()
    places = set()

    class Same(Dataset):
        def __init__(self) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(y)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            places.add(self.x.data_ptr())
            return self.x[index], y[index]

    problems.train(data=Same(), updates=10)
    assert places == {x.data_ptr()}


def test_what_a_worker_writes_into_the_data_stays_its_own():
    x = torch.ones(4000, 8)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x.zero_()
        return model(x).mean()

    class Rows(Dataset):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, index: int) -> Tensor:
            return x[index]

    assert x.nbytes >= 1 << 16, "large enough for a place of its own"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hogwild.run.trial.try_job.dry_run", lambda *arguments, **_: DryRun(frozenset(), 16, ()))
        problems.train(data=Rows(), loss=loss, kind="processes", updates=4)
    assert torch.equal(x, torch.ones(4000, 8))


# --- what is sent, in bytes


def sent(value: Any) -> int:
    package = Package({"value": value}, {})
    size = package.arena.nbytes
    package.close()
    return size


def test_rows_of_one_tensor_are_sent_once():
    """`list(zip(x, y))` is a data set to many: its rows are views of one tensor."""
    x, y = torch.zeros(100, 1000), torch.zeros(100)
    assert sent(list(zip(x, y, strict=True))) < 2 * x.nbytes
    assert sent([x[:60], x[40:]]) < 2 * x.nbytes
    assert sent(list(x.share_memory_())) < x.nbytes


def test_one_object_named_twice_is_sent_once():
    x = np.zeros((500, 1000), np.float32)
    assert sent({"train": x, "test": x}) < 1.1 * x.nbytes


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(100_000).view(100, 1000),
        torch.arange(100_000).view(100, 1000).t(),
        torch.arange(200_000).view(100, 2000)[:, ::2],
        torch.randn(10, 20, 30, 40).to(memory_format=torch.channels_last),
        torch.zeros(0, 5),
        torch.tensor(3.0),
        torch.arange(10).expand(3, 10),
        np.arange(100_000).reshape(100, 1000),
        np.asfortranarray(np.arange(100_000).reshape(100, 1000)),
        np.arange(200_000)[::-2],
        np.array(["a", "bb"] * 20_000),
        np.array([{}, None], dtype=object),
        np.zeros(30_000, dtype=[("a", "<i8"), ("b", "<f4")]),
        torch.randn(300, 300).bfloat16(),
        torch.randn(300, 300, dtype=torch.complex64),
        torch.randn(300, 300) > 0,
        torch.arange(6).view(2, 3).to(torch.uint32).t(),
        torch.tensor(3, dtype=torch.uint64),
        torch.zeros(0, dtype=torch.uint16),
        torch.arange(8).to(torch.float8_e4m3fn),
    ],
    ids=lambda value: f"{type(value).__name__} {value.dtype} {tuple(value.shape)}",
)
def test_values_arrive_as_they_were(value):
    package = Package({"value": value}, {})
    there = package.open({})["value"]
    assert type(there) is type(value)
    assert there.dtype == value.dtype
    assert there.shape == value.shape
    if isinstance(value, Tensor):
        assert torch.equal(there, value)
    else:
        assert np.array_equal(there, value)
    package.close()


# --- shared tensors


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_in_shared_memory_stay_shared(kind):
    counts = torch.zeros(8, dtype=torch.int64).share_memory_()

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)
            self.counts = counts

        def forward(self, x: Tensor) -> Tensor:
            self.counts[hogwild.worker_info().index + 4] += 1
            return self.layer(x)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        counts[hogwild.worker_info().index] += 1
        return problems.cross_entropy(model, batch)

    def optimizer(named: Any) -> torch.optim.Optimizer:
        counts[2] += 1
        return torch.optim.SGD(named, lr=0.1)

    run = problems.train(Counting(), loss=loss, optimizer=optimizer, kind=kind, updates=12)
    computed = sum(usage.computed for usage in run.workers)
    assert computed == 12
    assert counts[0] + counts[1] == 12 + 1, "and the dry run's"
    assert counts[2] == 2 + 1, "each worker's, and the caller's"
    assert counts[4] + counts[5] == 12 + 1, "those the model holds too"


def test_many_shared_tensors():
    shared = [torch.zeros(4).share_memory_() for _ in range(150)]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        shared[-1].add_(1)
        return problems.cross_entropy(model, batch)

    problems.train(loss=loss, kind="processes", updates=6)
    assert shared[-1][0] >= 6
    shared.clear()  # each holds a descriptor of its own


@pytest.mark.parametrize("kind", KINDS)
def test_runs_one_after_another_leave_no_descriptors(kind):
    problems.train(kind=kind, updates=4)
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(3):
        problems.train(kind=kind, updates=4)
    gc.collect()
    assert psutil.Process().num_fds() <= before
