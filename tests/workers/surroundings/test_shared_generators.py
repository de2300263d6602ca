"""Threads share three random generators. A draw that the trial step did not make is noticed, whichever it is from."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import problems
import pytest
import torch
from side_by_side import within
from torch import Tensor, nn
from torch.utils.data import Dataset
from traits import OTHER_BITS, SAME_BITS
from warm_pythons import warm_python

import hogwild
from hogwild import NotReproducible
from hogwild.data.generators import GeneratorWatch
from hogwild.data.seeding import loans_of_this_thread, preserved_generators
from hogwild.workers.surroundings.shared_generator import SharedGenerators

TORCH, NUMPY, PYTHON = "torch's default generator", "numpy's global generator", "Python's random module"
DRAWS: dict[str, tuple[Callable[[], Any], str]] = {
    "torch.rand": (lambda: torch.rand(()), TORCH),
    "torch.randn": (lambda: torch.randn(()), TORCH),
    "torch.dropout": (lambda: nn.functional.dropout(torch.ones(9)), TORCH),
    "torch.manual_seed": (lambda: torch.manual_seed(1), TORCH),
    "numpy.rand": (np.random.rand, NUMPY),
    "numpy.randn": (np.random.randn, NUMPY),
    "numpy.seed": (lambda: np.random.seed(1), NUMPY),
    "numpy.permutation": (lambda: np.random.permutation(5), NUMPY),
    "random.random": (random.random, PYTHON),
    "random.gauss": (lambda: random.gauss(0, 1), PYTHON),
    "random.seed": (lambda: random.seed(1), PYTHON),
    "random.shuffle": (lambda: random.shuffle([1, 2, 3]), PYTHON),
}
draws = pytest.mark.parametrize("draw", DRAWS)


def late(draw: str, first: int = 5) -> Callable[[nn.Module, Any], Tensor]:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update >= first:
            DRAWS[draw][0]()
        return problems.cross_entropy(model, batch)

    return loss


@draws
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_draw_from_the_sixth_update_on_is_named(update, draw):
    with preserved_generators(), pytest.raises(NotReproducible, match=f"{DRAWS[draw][1]}, which all threads share"):
        problems.train(loss=late(draw), update=update)


@draws
def test_a_single_draw_of_the_last_update_is_named(draw):
    with preserved_generators(), pytest.raises(NotReproducible, match=DRAWS[draw][1]):
        problems.train(loss=late(draw, first=39), update="ordered")


@draws
def test_a_draw_for_some_samples_only_is_named(draw):
    class Augmented(Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            if index == rare:
                DRAWS[draw][0]()
            x, y = problems.data()
            return x[index], int(y[index])

    seen: list[int] = []

    class Noting(Augmented):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            seen.append(index)
            return problems.data()[0][index], 0

    problems.train(data=Noting(), updates=12, workers=1, update="ordered", recheck=0)
    rare = seen[-1]
    with preserved_generators(), pytest.raises(NotReproducible, match=DRAWS[draw][1]):
        problems.train(data=Augmented(), updates=12, update="ordered")


@pytest.mark.parametrize(("draw", "leave"), [("numpy.randn", np.random.randn), ("random.gauss", random.gauss)])
def test_a_normal_number_that_was_left_over_is_a_draw(draw, leave):
    """They are made in pairs; the second is given out without moving the generator."""
    with preserved_generators():
        np.random.seed(0)
        random.seed(0)
        leave()
        with pytest.raises(NotReproducible, match=DRAWS[draw][1]):
            problems.train(loss=late(draw, first=39), update="ordered", updates=40)


def test_an_evaluation_may_draw_from_all_three():
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {name: float(bool(draw())) for name, (draw, _) in DRAWS.items() if name.endswith(("rand", "random"))}

    quiet = problems.train(update="ordered")
    assert problems.train(update="ordered", evaluate=evaluate, evaluate_every=1).digest == quiet.digest


@draws
@pytest.mark.parametrize("update", OTHER_BITS)
def test_nothing_is_refused_where_nothing_is_promised(update, draw):
    with preserved_generators():
        assert problems.train(loss=late(draw), update=update, updates=8).updates == 8


def test_processes_may_draw_from_all_three():
    runs = [problems.train(loss=with_noise, update="ordered", kind="processes", workers=n) for n in (1, 2)]
    assert runs[0].digest == runs[1].digest


def with_noise(model: nn.Module, batch: Any) -> Tensor:
    return problems.cross_entropy(model, batch) * (1 + torch.rand(()) + np.random.rand() + random.random())


# --- what a worker makes of it


class Control:
    """Of which a wait is seen."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def wait_until(self, is_so: Callable[[], bool], worker: int) -> None:
        self.waits.set()
        within(60, is_so)


@pytest.fixture
def worker() -> SharedGenerators:
    return SharedGenerators(Control(), 0, "ordered", loans_of_this_thread())


def test_what_is_computed_while_somebody_draws_is_computed_again_once(worker):
    """The second time they had been put back before it began."""
    found: list[bool] = []
    worker._control.waits.clear()
    beside = threading.Thread(target=lambda: found.append(worker.moved(1)))
    with preserved_generators():
        torch.rand(())
        beside.start()
        assert worker._control.waits.wait(60)
    beside.join()
    assert found == [True] and not worker.moved(1)


def test_what_is_computed_while_they_are_put_back_is_computed_again_and_not_twice_in_a_row(worker):
    for update in range(1, 4):
        for again in (True, False):
            with preserved_generators():
                torch.rand(())
            assert worker.moved(update) == again
        assert not worker.moved(update)


def test_a_loan_in_which_nothing_moved_voids_nothing(worker):
    with preserved_generators():
        pass
    assert not worker.moved(1)


# --- the watch itself


@draws
@pytest.mark.parametrize("left_over", [False, True])
def test_the_watch_sees_every_draw_by_name(draw, left_over):
    with preserved_generators():
        np.random.seed(0)
        random.seed(0)
        if left_over:
            np.random.randn()
            random.gauss(0, 1)
        watch = GeneratorWatch()
        before = watch.look()
        assert watch.moved(before, watch.look()) == []
        DRAWS[draw][0]()
        assert watch.moved(before, watch.look()) == [DRAWS[draw][1]]


def test_the_watch_sees_that_a_generator_was_put_back():
    with preserved_generators():
        watch = GeneratorWatch()
        before = watch.look()
        with preserved_generators():
            for draw, _ in DRAWS.values():
                draw()
        assert watch.moved(before, watch.look()) == []


def test_the_watch_sees_another_generator_of_numpys():
    with preserved_generators():
        watch = GeneratorWatch()
        before, own = watch.look(), np.random.get_bit_generator()
        np.random.set_bit_generator(np.random.PCG64(0))
        try:
            assert watch.moved(before, watch.look()) == [NUMPY]
            other = GeneratorWatch()
            before = other.look()
            np.random.rand()
            assert other.moved(before, other.look()) == [NUMPY]
        finally:
            np.random.set_bit_generator(own)


MEETING = """
import gc, threading, time
from hogwild.data.generators import GeneratorWatch
from hogwild.data.seeding import preserved_generators

def begins():
    for k in range(500):
        kept = [[] for _ in range(k % 4)]  # so that the next collection comes at any place
        GeneratorWatch()

def evaluates():
    for k in range(500):
        kept = [[] for _ in range(k % 4)]
        with preserved_generators():
            pass

gc.callbacks.append(lambda phase, info: time.sleep(1e-4))  # in which the GIL changes hands
gc.set_threshold(3)
threads = [threading.Thread(target=work, daemon=True) for work in (begins, begins, evaluates)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_ask_torch_for_its_state_while_garbage_is_collected_do_not_wait_for_ever(tmp_path):
    done = warm_python(["-c", MEETING], tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
