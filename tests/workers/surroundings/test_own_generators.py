"""A worker process seeds numpy's and Python's generators only once something draws; no bit shows it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from traits import SAME_BITS

import hogwild
from hogwild.data.seeding import preserved_generators, seed_generators
from hogwild.workers.surroundings.own_generators import OwnGenerators


def drawn_and_put_back() -> float:
    numpy_state, python_state = np.random.get_state(), random.getstate()
    value = np.random.rand() + random.random()
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    return value


def read_after_a_draw() -> float:
    return random.random() + float(np.random.get_state()[1][5] % 7)


# Lambdas, for a bound method of a generator is sent with a generator of its own.
DRAWS: dict[str, Callable[[], float]] = {
    "numpy.rand": lambda: np.random.rand(),
    "numpy.randn": lambda: np.random.randn(),
    "numpy.permutation": lambda: float(np.random.permutation(5)[0]),
    "numpy.get_state": lambda: float(np.random.get_state()[1][3] % 7),
    "random.random": lambda: random.random(),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.shuffle": lambda: float(random.sample(range(9), 3)[0]),
    "random.getstate": lambda: float(random.getstate()[1][3] % 7),
    "torch, then numpy": lambda: torch.rand(()).item() + np.random.rand(),
    "numpy.seed": lambda: float(np.random.seed(random.randrange(9)) or np.random.rand()),
    "drawn and put back": drawn_and_put_back,
    "read after a draw": read_after_a_draw,
}


def sometimes(draw: str, every: int = 7, first: int = 5) -> Callable[[nn.Module, Any], Tensor]:
    chosen = DRAWS[draw]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        info = hogwild.worker_info()
        factor = 1.0
        if info.update >= first and info.update % every == 0:
            factor += 0.1 * chosen()
        info.log(factor=factor)
        return problems.cross_entropy(model, batch) * factor

    return loss


def seeded_for_every_batch(**settings: Any) -> hogwild.Run:
    """A schedule is code that may draw where nobody looks, so that all three generators are always seeded."""
    return problems.train(**settings, lr_schedule=lambda update: 1.0)


def logged(run: hogwild.Run) -> list[tuple[float, float]]:
    return sorted((row["update"], row["factor"]) for row in run.logged)


RULES = [("hogwild", 1), *((rule, 2) for rule in SAME_BITS)]
LATE = [
    *((draw, *RULES[number % len(RULES)]) for number, draw in enumerate(DRAWS)),
    *((draw, *rule) for draw in ("numpy.get_state", "read after a draw") for rule in RULES),
]


@pytest.mark.parametrize(("draw", "update", "workers"), sorted({*LATE}))
def test_a_late_draw_is_that_of_its_batch(draw, update, workers):
    """Under one rule each, for a worker looks at them under all of them by the same line; a state that is asked for
    before a draw, and after one, under each."""
    settings = {"loss": sometimes(draw), "update": update, "kind": "processes"}
    found, expected = problems.train(workers=workers, **settings), seeded_for_every_batch(workers=1, **settings)
    assert found.digest == expected.digest
    assert logged(found) == logged(expected), "what is computed again is logged once"


def test_a_draw_of_a_data_set_for_some_samples():
    class Augmented(Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            x, y = problems.data()
            return x[index] + (random.random() if index % 50 == 11 else 0.0), int(y[index])

    settings = {"data": Augmented(), "update": "ordered", "kind": "processes", "batch_size": 5}
    assert problems.train(**settings).digest == seeded_for_every_batch(**settings).digest


def test_what_an_unseeded_draw_made_it_raise_is_forgotten():
    with preserved_generators():
        seed_generators(0)
        unseeded = random.random()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 9 and random.random() == unseeded:
            raise KeyError("drawn from a generator that was not seeded")
        return problems.cross_entropy(model, batch)

    settings = {"loss": loss, "update": "ordered", "kind": "processes", "workers": 1, "max_restarts": 0}
    assert problems.train(**settings).digest == seeded_for_every_batch(**settings).digest


# --- the generators themselves


def states() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().numpy().tobytes(),
        np.random.get_state()[1].tobytes(),
        np.random.get_state()[2],
        random.getstate(),
    )


def test_they_are_seeded_from_the_first_draw_on():
    with preserved_generators():
        own = OwnGenerators(lazy=True)
        try:
            own.begin(17)
            torch.rand(3)
            assert not own.drew_unseeded() and own.lazy, "torch's is seeded anyway"
            own.begin(18)
            np.random.rand()
            assert own.drew_unseeded() and not own.lazy
            own.begin(18)
            found = states()
            assert not own.drew_unseeded()
        finally:
            own.close()
        seed_generators(18)
        assert found == states()


def test_whoever_asks_for_a_state_finds_that_of_the_batch():
    with preserved_generators():
        own = OwnGenerators(lazy=True)
        try:
            own.begin(19)
            found = states()
            assert not own.lazy and not own.drew_unseeded()
        finally:
            own.close()
        seed_generators(19)
        assert found == states()


def test_nothing_stays_in_the_modules_of_others():
    before = random.getstate, np.random.get_state
    with preserved_generators():
        own = OwnGenerators(lazy=True)
        assert (random.getstate, np.random.get_state) != before
        own.close()
        own.close()
    assert (random.getstate, np.random.get_state) == before
