"""The model of a step: what it says where the answer is known, and that it is fitted to what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hogwild.bench.model import StepModel

CORES = (1, 2, 4, 8, 16, 32, 64, 128)


def test_without_anything_shared_as_many_cores_are_as_many_times_as_fast():
    model = StepModel((0.001, 0.001), (0.0, 0.0))
    assert model.updates_per_second(1, 1) == pytest.approx(1000)
    for cores in CORES:
        assert model.updates_per_second(cores, cores) == pytest.approx(cores * 1000)


def test_no_more_than_the_commits_allow_nor_the_cores_nor_the_memory():
    for workers in CORES:
        in_turn = StepModel((0.001, 0.001), (0.0002, 0.0002), handover=0.00005)
        assert in_turn.updates_per_second(workers, workers) <= 1 / 0.0002
        assert StepModel((0.001, 0.001), (0.0, 0.0)).updates_per_second(workers, 2) <= 2 / 0.001
        assert StepModel((0.001, 0.001), (0.0, 0.0), memory=0.01).updates_per_second(workers, 64) <= 1 / 0.01
    assert in_turn.updates_per_second(128, 128) == pytest.approx(1 / 0.00025, rel=0.05)


def test_a_wait_takes_no_core():
    model = StepModel((0.0001, 0.0001), (0.0, 0.0))
    assert model.updates_per_second(1, 1, pad=0.005) == pytest.approx(1 / 0.0051)
    assert model.updates_per_second(16, 1, pad=0.005) == pytest.approx(16 / 0.0051, rel=0.05)
    assert model.updates_per_second(1024, 1, pad=0.005) == pytest.approx(1 / 0.0001, rel=0.05)


def test_a_staleness_limits_how_many_are_busy():
    model = StepModel((0.001, 0.001), (0.0, 0.0), most=3)
    assert model.updates_per_second(8, 8) == model.updates_per_second(3, 8)


def test_more_workers_are_never_slower_where_nothing_grows():
    model = StepModel((0.001, 0.001), (0.0003, 0.0003))
    speeds = [model.updates_per_second(cores, cores) for cores in CORES]
    assert all(more > 0.999 * fewer for fewer, more in pairwise(speeds))


def test_what_grew_from_one_worker_to_two_grows_on_to_twice_that():
    model = StepModel((0.001, 0.0012), (0.0, 0.0))
    alone = StepModel((0.0014, 0.0014), (0.0, 0.0))
    assert model.updates_per_second(10**4, 10**4) == pytest.approx(alone.updates_per_second(10**4, 10**4), rel=1e-3)


ONE = {"forward": 0.0006, "backward": 0.0004, "commit": 0.0002, "wait": 0.0}
TWO = {"forward": 0.0006, "backward": 0.0005, "commit": 0.0003, "wait": 0.0004}


def test_it_is_fitted_to_one_worker_and_to_two():
    model = StepModel.fitted(ONE, TWO, in_turn=True, cores=2)
    assert model.compute == pytest.approx((0.001, 0.0011)) and model.commit == pytest.approx((0.0002, 0.0003))
    assert model.updates_per_second(1, 1) == pytest.approx(1 / sum(ONE.values()))
    assert model.updates_per_second(2, 2) == pytest.approx(2 / sum(TWO.values()), rel=1e-4)
    assert model.handover > 0


def test_commits_that_overlap_are_part_of_what_is_done_side_by_side():
    model = StepModel.fitted(ONE, TWO, in_turn=False, cores=2)
    assert model.compute == pytest.approx((0.0012, 0.0014))
    assert (model.commit, model.handover) == ((0.0, 0.0), 0.0)


def test_memory_counts_where_no_cache_holds_it():
    small, large = (
        StepModel.fitted(ONE, None, in_turn=False, cores=1, commit_bytes=size, bandwidth=1e9) for size in (1e6, 1e8)
    )
    assert (small.memory, large.memory) == (0.0, 0.1)


def test_a_second_run_that_was_faster_shrinks_nothing():
    model = StepModel.fitted(TWO, ONE, in_turn=True, cores=2)
    assert model.compute[0] == model.compute[1] and model.commit[0] == model.commit[1] and model.handover >= 0
