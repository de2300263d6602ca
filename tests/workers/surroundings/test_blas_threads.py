"""NumPy's BLAS computes with one thread wherever a training does, for the bits of a product hang on their number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import problems
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits
from torch import nn
from traits import KINDS
from warm_pythons import warm_python

from hogwild.shared.limits import usable_cores
from hogwild.workers.surroundings import blas_threads
from hogwild.workers.surroundings.blas_threads import BlasThreads


def numbers() -> set[int]:
    return {library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers}


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threadpool_limits(2, "blas"):
        if numbers() != {2}:
            pytest.skip("the number of threads of this BLAS cannot be set")
        yield


PRODUCTS = """
import sys
import numpy as np, torch
import hogwild
from threadpoolctl import threadpool_limits

try:
    from scipy.linalg import blas  # a library of its own
except ImportError:
    blas = None
for number in sys.argv[2:]:
    threadpool_limits(int(number), "blas")
draws = np.random.default_rng(0)
A = draws.standard_normal((300, 300))

def product(batch):  # of both dtypes, for it hangs on the processor which of them feels the number of threads
    both = batch @ A + batch.astype(np.float32) @ A.astype(np.float32)
    return both if blas is None else both + blas.dgemm(1.0, batch, A)

def loss(model, batch):
    return model(torch.from_numpy(product(batch.numpy()))).square().mean()

def evaluate(model):
    return {"sum": float(product(data[:64].numpy()).sum())}

data = torch.from_numpy(draws.standard_normal((128, 300)))
torch.manual_seed(0)
model, settings = torch.nn.Linear(300, 1).double(), {"updates": 8, "batch_size": 32, "staleness": 1}
optimizer = lambda parameters: torch.optim.SGD(parameters, lr=1e-5)
run = hogwild.train(model, data, loss, optimizer=optimizer, update="ordered", workers=2, kind=sys.argv[1],
                    evaluate=evaluate, evaluate_every=4, **settings)
print(run.digest, [row["sum"] for row in run.evaluations])
if sys.argv[1] == "threads":
    print(float(product(data.numpy()).sum()))
"""


def output_of(arguments: list[str], folder: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def products(folder: Path, kind: str, threads: int) -> list[str]:
    done = warm_python(["-c", PRODUCTS, kind, str(threads)], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_products_in_the_loss_and_the_evaluation_are_the_same_whatever_their_threads(tmp_path):
    """As they are by themselves in worker processes, whose server is started; else as many as are set."""
    as_they_are = {kind: products(tmp_path, kind, 2) for kind in KINDS}
    alone = {kind: products(tmp_path, kind, 1) for kind in KINDS}
    by_themselves = output_of(["-c", PRODUCTS, "processes"], tmp_path)
    assert len({run[0] for run in (*as_they_are.values(), *alone.values(), by_themselves)}) == 1
    if usable_cores() >= 2 and np.show_config("dicts")["Build Dependencies"]["blas"]["name"].endswith("openblas"):
        assert as_they_are["threads"][1] != alone["threads"][1], "or this test shows nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_and_evaluation_has_one_thread_and_they_are_given_back(kind, two_threads, tmp_path):
    seen = tmp_path / "seen"

    def look() -> None:
        with seen.open("a") as file:
            print(*numbers(), file=file)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        look()
        return problems.cross_entropy(model, batch)

    def evaluate(model: nn.Module) -> dict[str, float]:
        look()
        return {}

    problems.train(update="ordered", kind=kind, loss=loss, evaluate=evaluate, evaluate_every=2, updates=8, workers=2)
    told = seen.read_text().split()
    assert len(told) > 8 + 4
    assert set(told) == {"1"}
    assert numbers() == {2}


def test_the_reference_computes_as_workers_do(two_threads):
    seen = set()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.update(numbers())
        return problems.cross_entropy(model, batch)

    problems.train_serially(problems.mlp(), loss=loss, updates=4)
    assert seen == {1} and numbers() == {2}


OWN = """
from multiprocessing import get_context
import torch
import hogwild
from threadpoolctl import ThreadpoolController

def numbers():
    return sorted(library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers)

def tell(connection):
    connection.send(numbers())

if __name__ == "__main__":
    hogwild.train(torch.nn.Linear(1, 1), torch.ones(4, 1), lambda model, batch: model(batch).sum(), updates=1,
                  optimizer=torch.optim.SGD, batch_size=2, kind="processes")
    receiver, sender = get_context("forkserver").Pipe(duplex=False)
    process = get_context("forkserver").Process(target=tell, args=[sender])
    process.start()
    print(receiver.recv() == numbers())
    process.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_processes_of_the_callers_own_that_the_server_forks_have_their_threads(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(OWN)
    assert output_of([str(script)], tmp_path) == ["True"]


def test_trainings_across_each_other_give_back_what_was_before_both(two_threads):
    threads = BlasThreads()
    threads.lend()
    threads.lend()
    assert numbers() == {1}
    threads.give_back()
    assert numbers() == {1}
    threads.give_back()
    assert numbers() == {2}


def test_of_an_evaluation_what_torch_sets_is_left_alone(two_threads):
    threads = BlasThreads()
    (api,) = {library.internal_api for library in ThreadpoolController().select(user_api="blas").lib_controllers}
    with threads.one(but={api}):
        assert numbers() == {2}
    assert numbers() == {2}


def test_libraries_are_looked_for_only_once_something_was_imported(two_threads, monkeypatch):
    """It is asked for as a run starts, as a worker does, and for each step that is tried."""
    looks = []

    def look() -> ThreadpoolController:
        looks.append(len(looks))
        return ThreadpoolController()

    monkeypatch.setattr(blas_threads, "ThreadpoolController", look)
    threads = BlasThreads()
    for _ in range(3):
        with threads.one():
            assert numbers() == {1}
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "imported_since", sys)
    with threads.one():
        assert len(looks) == 2
