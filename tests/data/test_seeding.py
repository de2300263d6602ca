"""Generators are a function of (seed, update); the flags that decide bits reach every worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from traits import KINDS

import hogwild
from hogwild.data.seeding import DrawDetector, mix, preserved_generators, seed_update
from hogwild.workers.surroundings.bit_flags import BitFlags

numbers = st.integers(0, 2**64 - 1)
TORCH, NUMPY, PYTHON = "torch's default generator", "numpy's global generator", "Python's random module"


@given(st.lists(numbers, max_size=4))
def test_mixing_gives_63_bits(parts):
    assert 0 <= mix(*parts) < 2**63


@given(numbers, numbers, st.integers(0, 63), st.integers(0, 1))
def test_every_bit_of_every_part_counts(a, b, bit, which):
    parts = [a, b]
    parts[which] ^= 1 << bit
    difference = mix(a, b) ^ mix(*parts)
    assert 8 <= difference.bit_count() <= 56, "about half of 63 bits change"


@given(numbers, numbers)
def test_the_order_of_the_parts_counts(a, b):
    assert a == b or mix(a, b) != mix(b, a)
    assert mix(a) != mix(a, 0)


def test_neighbouring_runs_and_updates_share_no_number():
    assert len({mix(seed, update) for seed in range(100) for update in range(1000)}) == 100_000


def test_these_numbers_never_change():
    """Checkpoints and recorded runs rest on them."""
    assert mix(0, 0) == 6017775124710473527
    assert mix(5, 7, 9) == 7301144535785899057


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), np.random.rand(), random.random()


def test_seeding_an_update_seeds_all_three_generators():
    with preserved_generators():
        seed_update(3, 4)
        first = draws()
        seed_update(3, 4)
        assert draws() == first
        for seed, update in ((3, 5), (4, 4)):
            seed_update(seed, update)
            assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_what_is_drawn_inside_leaves_the_generators_as_they_were():
    with preserved_generators():
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        expected = draws()
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)

        def fail() -> None:
            with preserved_generators():
                seed_update(9, 9)
                draws()
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert draws() == expected


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (lambda: torch.rand(1), [TORCH]),
        (lambda: nn.functional.dropout(torch.ones(9)), [TORCH]),
        (lambda: torch.multinomial(torch.ones(3), 1), [TORCH]),
        (lambda: torch.randn(1), [TORCH]),
        (lambda: np.random.rand(), [NUMPY]),
        (lambda: np.random.randn(), [NUMPY]),
        (lambda: random.random(), [PYTHON]),
        (lambda: random.gauss(0, 1), [PYTHON]),
        (lambda: draws(), [TORCH, NUMPY, PYTHON]),
        (lambda: torch.rand(1, generator=torch.Generator()), []),
        (lambda: np.random.default_rng(0).random(), []),
        (lambda: random.Random(0).random(), []),
        (lambda: nn.functional.dropout(torch.ones(9), training=False), []),
    ],
)
def test_a_draw_is_found_by_the_generator_that_moved(draw, found):
    with preserved_generators():
        detector = DrawDetector()
        assert detector.drawn() == []
        draw()
        assert detector.drawn() == found


FLAGS = {
    "default_dtype": torch.float64,
    "deterministic, warn only": (True, True),
    "float32_matmul_precision": "high",
    "mkldnn.matmul.fp32_precision": "tf32",
    "mkldnn.enabled": False,
    "flush_denormal": True,
}


@pytest.fixture
def restored_flags():
    flags = BitFlags.capture()
    yield flags
    flags.apply()


def test_flags_are_captured_and_set(restored_flags):
    other = BitFlags({**restored_flags.values, **FLAGS})
    assert other != restored_flags
    other.apply()
    assert BitFlags.capture() == other
    restored_flags.apply()
    assert BitFlags.capture() == restored_flags


@pytest.mark.parametrize("kind", KINDS)
def test_flags_reach_every_worker(restored_flags, kind):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        flags = BitFlags.capture()
        hogwild.worker_info().log(
            same=flags == expected, threads=torch.get_num_threads(), wide=torch.zeros(1).dtype == torch.float64
        )
        return nn.functional.cross_entropy(model(batch[0].float()), batch[1])

    expected = BitFlags({**restored_flags.values, **FLAGS})
    expected.apply()
    run = problems.train(problems.mlp().float(), loss=loss, kind=kind, updates=6)
    assert all((row["same"], row["threads"], row["wide"]) == (1, 1, 1) for row in run.logged)
    assert len(run.logged) == 6
    assert BitFlags.capture() == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_update_draws_in_a_process_is_decided_by_seed_and_update(workers):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        drawn = draws()
        hogwild.worker_info().log(torch=drawn[0], numpy=drawn[1], python=drawn[2])
        return problems.cross_entropy(model, batch)

    with preserved_generators():
        run = problems.train(kind="processes", workers=workers, loss=loss, updates=6, seed=11)
        for row in run.logged:
            seed_update(11, row["update"])
            assert (row["torch"], row["numpy"], row["python"]) == draws()
    assert len(run.logged) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_the_callers_generators_alone(kind):
    with preserved_generators():
        model = problems.mlp()
        detector = DrawDetector()

        def evaluate(model: nn.Module) -> dict[str, float]:
            return {"drawn": draws()[0]}

        problems.train(model, kind=kind, updates=3, evaluate=evaluate, evaluate_every=1)
        assert detector.drawn() == []


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_of_a_worker_is_decided_by_seed_and_update_whenever_it_is_asked_for(kind, first, kept):
    """Also where it is asked for late, or once and then kept."""
    held: dict[int, torch.Generator] = {}  # by the info that gave it: the dry run has one of its own

    def loss(model: nn.Module, batch: Any) -> Tensor:
        info = hogwild.worker_info()
        if info.update >= first:
            generator = held.setdefault(id(info), info.generator) if kept else info.generator
            drawn = torch.randint(2**62, (), generator=generator).item()
            info.log(high=drawn >> 31, low=drawn & 0x7FFFFFFF)
        return problems.cross_entropy(model, batch)

    run = problems.train(kind=kind, workers=1, loss=loss, updates=6, seed=11)
    assert [row["update"] for row in run.logged] == list(range(first, 6))
    for row in run.logged:
        fresh = torch.Generator().manual_seed(mix(11, row["update"]))
        drawn = torch.randint(2**62, (), generator=fresh).item()
        assert (row["high"], row["low"]) == (drawn >> 31, drawn & 0x7FFFFFFF)
