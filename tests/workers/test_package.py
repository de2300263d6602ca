"""Data and models lie in memory once, however many workers there are; what a program defines reaches every worker."""

from __future__ import annotations

import functools
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import problems
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Dataset
from traits import KINDS

import hogwild
from hogwild.run.dry_run import DryRun
from hogwild.workers.package import Package

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
        patch.setattr("hogwild.run.prepare.dry_run", lambda *arguments, **_: DryRun(frozenset(), 16, ()))
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


# --- programs without a module to import

SCRIPT = """
import torch, hogwild
from functools import partial
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return helper(self.layer(x))

def helper(x):
    return torch.relu(x) + shift

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((4,), i / 64.0), i % 2

class Loud(Exception):
    pass

shift = 0.25
scale = 2.0
print("top of the program")
run = hogwild.train(
    Net(), Squares(), lambda model, batch: scale * nn.functional.cross_entropy(model(batch[0]), batch[1]),
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1), updates=12, batch_size=8, workers=2,
    lr_schedule=lambda u: 1 / (1 + u), evaluate=lambda model: {"norm": float(model.layer.weight.detach().norm())},
)
assert run.updates == 12, run.updates
def bad(model, batch):
    if hogwild.worker_info() and hogwild.worker_info().update == 3:
        raise Loud("of its own class")
    return model(batch[0]).sum()
try:
    hogwild.train(Net(), Squares(), bad, optimizer=partial(torch.optim.SGD, lr=0.1), updates=12, batch_size=8)
except hogwild.WorkerError as error:
    assert "Loud" in str(error) and "of its own class" in str(error), error
    print("told of it")
print("end of the program")
"""


def run_program(arguments: list[str], standard_input: str | None = None, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(hogwild.__file__).parent.parent), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["script", "standard input", "cell"])
def test_a_program_without_a_guard_runs_once_and_its_classes_reach_the_workers(way, tmp_path):
    if way == "script":
        path = tmp_path / "program.py"
        path.write_text(SCRIPT)
        output = run_program([str(path)])
    elif way == "standard input":
        output = run_program(["-"], SCRIPT)
    else:  # as a notebook runs a cell: compiled from text, in a module that has no file
        cell = f"import __main__; exec(compile({SCRIPT!r}, '<cell 1>', 'exec'), __main__.__dict__)"
        output = run_program(["-c", cell])
    assert output.splitlines() == ["top of the program", "told of it", "end of the program"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_a_program_needs_no_room_in_dev_shm():
    """Containers give /dev/shm 64 MB. What a run shares lies elsewhere."""
    folder = Path("/dev/shm")
    seen = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append({path.name for path in folder.iterdir() if "torch" in path.name or "psm" in path.name})
        return {}

    before = {path.name for path in folder.iterdir()}
    problems.train(kind="processes", updates=10, evaluate=evaluate, evaluate_every=2)
    assert all(names <= before for names in seen)
    assert seen


def test_functions_with_a_cache_and_names_of_torch_in_another_module_are_sent():
    @functools.lru_cache(maxsize=3)
    def weight(number: int) -> float:
        return 1 + number / 10

    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert weight.cache_parameters() == {"maxsize": 3, "typed": False}
        with sdpa_kernel(SDPBackend.MATH):
            return weight(len(batch[0])) * problems.cross_entropy(model, batch)

    runs = [problems.train(update="ordered", kind=kind, loss=loss, updates=6) for kind in KINDS]
    assert runs[0].digest == runs[1].digest


def test_partial_functions_and_bound_methods_are_sent():
    class Scaled:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def loss(self, model: nn.Module, batch: Any, power: int) -> Tensor:
            return self.scale * problems.cross_entropy(model, batch) ** power

    loss = partial(Scaled(0.5).loss, power=2)
    runs = [problems.train(loss=loss, kind=kind, update="ordered", updates=5) for kind in KINDS]
    assert runs[0].digest == runs[1].digest


@pytest.mark.parametrize("first", ["", "sys.path.insert(0, os.getcwd())"], ids=["nowhere", "on the path"])
def test_a_folder_named_as_a_package_is_not_taken_for_it(first, tmp_path):
    """The fork server is started by `python -c`, which by itself would import from the current folder first, and on
    Python 3.14 by the path that this program has by then."""
    (tmp_path / "hogwild").mkdir()
    taken = tmp_path / "taken"
    (tmp_path / "hogwild" / "__init__.py").write_text(f"open({str(taken)!r}, 'w').close()")
    program = (
        "import os, sys; sys.path = [p for p in sys.path if p]\n"
        f"sys.path.insert(0, {str(Path(problems.__file__).parent)!r})\n"
        f"import problems; {first}\n"
        "print(problems.train(kind='processes', updates=3).updates)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3\n", done.stderr
    assert not taken.exists()


@pytest.mark.parametrize("callers", [None, "1"])
def test_a_worker_has_the_environment_of_its_program(callers):
    """Its server is started with another, so in a program of its own."""
    code = """
import hogwild, os, torch
def loss(model, batch):
    safe = os.environ.get("PYTHONSAFEPATH")
    hogwild.worker_info().log(safe=float(safe == "1"), more=float(any("HOGWILD" in name for name in os.environ)))
    return model(batch).sum()
sgd = lambda named: torch.optim.SGD(named, lr=0.1)
model, x = torch.nn.Linear(2, 1), torch.ones(8, 2)
run = hogwild.train(model, x, loss, optimizer=sgd, updates=3, batch_size=4, kind="processes")
print(run.logged[0]["safe"], run.logged[0]["more"], os.environ.get("PYTHONSAFEPATH"))
"""
    own = {name: value for name, value in os.environ.items() if "HOGWILD" not in name and name != "PYTHONSAFEPATH"}
    own |= {"PYTHONSAFEPATH": callers} if callers else {}
    told = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(float(callers == "1")), "0.0", str(callers)]
