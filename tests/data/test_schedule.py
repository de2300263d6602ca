"""The schedule is a pure function of (seed, update), and every epoch visits every sample once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hogwild import Schedule

sizes = st.integers(1, 60).flatmap(lambda samples: st.tuples(st.just(samples), st.integers(1, samples)))


@given(sizes, st.booleans(), st.integers(0, 2**40))
def test_every_epoch_visits_every_sample_once(size, shuffle, seed):
    samples, batch_size = size
    schedule = Schedule(samples, batch_size, shuffle, seed)
    for epoch in range(3):
        first = epoch * len(schedule)
        batches = [schedule.indices(u).tolist() for u in range(first, first + len(schedule))]
        assert sorted(i for batch in batches for i in batch) == list(range(samples))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert len(batches[-1]) == samples - batch_size * (len(schedule) - 1)


@given(sizes, st.booleans(), st.integers(0, 2**40))
def test_without_the_last_batch_an_epoch_is_the_whole_ones(size, shuffle, seed):
    """In the order of an epoch that has it."""
    samples, batch_size = size
    schedule, whole = Schedule(*size, shuffle, seed, drop_last=True), Schedule(*size, shuffle, seed)
    assert (len(schedule), schedule.visited) == (samples // batch_size, samples - samples % batch_size)
    for epoch in range(3):
        for place in range(len(schedule)):
            indices = schedule.indices(epoch * len(schedule) + place)
            assert torch.equal(indices, whole.indices(epoch * len(whole) + place)) and len(indices) == batch_size


@given(sizes, st.integers(0, 2**40), st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_batch_depends_on_the_seed_and_the_update_alone(size, seed, updates):
    used = Schedule(*size, seed=seed)
    for update in updates:
        assert torch.equal(used.indices(update), Schedule(*size, seed=seed).indices(update))


@given(sizes, st.integers(0, 500))
def test_without_shuffling_samples_come_in_order(size, update):
    samples, batch_size = size
    schedule = Schedule(samples, batch_size, shuffle=False)
    start = update % len(schedule) * batch_size
    assert schedule.indices(update).tolist() == list(range(start, min(start + batch_size, samples)))


def test_epochs_and_seeds_are_shuffled_differently():
    orders = [Schedule(1000, 1000, seed=seed).indices(epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order.tolist()) for order in orders}) == 25
    same = np.mean([(a == b).float().mean().item() for i, a in enumerate(orders) for b in orders[:i]])
    assert same < 0.005, "two shuffles agree in one place of a thousand, by chance"


def test_the_global_generators_have_no_part_in_it():
    torch.manual_seed(1)
    one = Schedule(100, 10).indices(3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(Schedule(100, 10).indices(3), one)
    assert torch.equal(torch.get_rng_state(), before)


def test_this_schedule_never_changes():
    """Checkpoints and recorded runs rest on it."""
    assert Schedule(10, 4, seed=0).indices(0).tolist() == [0, 6, 4, 5]
    assert Schedule(10, 4, seed=5).indices(7).tolist() == [4, 1, 7, 6]


@given(sizes, st.booleans(), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 80)), min_size=1, max_size=5))
def test_batches_one_after_the_other_are_those_asked_for_alone(size, shuffle, stretches):
    """Whoever goes on where it was is given batches that were cut together."""
    used = Schedule(*size, shuffle, seed=3)
    for first, length in stretches:
        for update in range(first, first + length):
            assert torch.equal(used.indices(update), Schedule(*size, shuffle, seed=3).indices(update))
