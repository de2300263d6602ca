"""`replayed`: ticket k is row k of a journal, and whatever is told of it is told by the update that the row names."""

from __future__ import annotations

import threading

import numpy as np
import problems
import pytest
import torch

import hogwild
from hogwild.rules.replayed import Replayed

ORDER = [3, 0, 1, 2, 7, 4, 5, 6, 12, 8]  # the updates by row; 12: an interrupted run leaves out those before it


def permuted(order: list[int]) -> Replayed:
    """The replay of a journal whose updates came in that order, each computed on the newest version."""
    rows = np.zeros(len(order), dtype=[("update", np.int64), ("version_read", np.int64)])
    rows["update"], rows["version_read"] = order, range(len(order))
    return Replayed(rows)


def replay(loss, order=ORDER):
    return problems.train(update=permuted(order), workers=1, updates=len(order), loss=loss)


def not_finite_at(batch):
    def loss(model, samples):
        value = problems.cross_entropy(model, samples)
        return value * float("nan") if hogwild.worker_info().batch == batch else value

    return loss


@pytest.mark.parametrize("batch", [number for number in ORDER if number != 0])  # the dry run computes batch 0
def test_what_is_not_finite_is_told_by_the_update_and_batch_of_its_row(batch):
    with pytest.raises(hogwild.NonFiniteError, match=rf"at update {batch} \(batch {batch}\), worker 0") as caught:
        replay(not_finite_at(batch))
    assert (caught.value.update, caught.value.batch) == (batch, batch)


@pytest.mark.parametrize("batch", [7, 12])
def test_what_a_loss_raises_is_told_by_the_update_and_batch_of_its_row(batch):
    def loss(model, samples):
        if hogwild.worker_info().batch == batch:
            raise KeyError("bad")
        return problems.cross_entropy(model, samples)

    with pytest.raises(hogwild.WorkerError, match=rf"raised KeyError at update {batch} \(batch {batch}\): 'bad'"):
        replay(loss)


def test_a_loss_learns_the_update_and_batch_of_its_row():
    def loss(model, samples):
        info = hogwild.worker_info()
        info.log(batch_seen=info.batch, update_seen=info.update)
        return problems.cross_entropy(model, samples)

    run = replay(loss)
    assert run.journal["update"].tolist() == ORDER
    assert run.journal["version"].tolist() == list(range(1, 11))
    told = [(row["update"], row["batch"], row["update_seen"], row["batch_seen"]) for row in run.logged]
    assert told == [(number,) * 4 for number in sorted(ORDER)], "by update"


def test_the_replay_of_a_saved_run_names_the_batch_that_was_not_finite(tmp_path):
    """Under `snapshot` update 0 is overtaken, so the journal's rows are not in the order of the updates."""
    overtaken = threading.Event()

    def slow_at_first(model, samples):
        if problems.in_worker_thread():
            if hogwild.worker_info().update == 0:
                assert overtaken.wait(60)
            elif hogwild.worker_info().update == 9:
                overtaken.set()
        return problems.cross_entropy(model, samples)

    run = problems.train(update="snapshot", loss=slow_at_first, updates=20, out=tmp_path)
    row = run.journal["update"].tolist().index(8)
    assert row < 8 and run.journal["update"][8] != 8, "the rows are permuted"
    with pytest.raises(hogwild.NonFiniteError) as caught:
        hogwild.replay(
            tmp_path, model=problems.mlp(), data=problems.data(), loss=not_finite_at(8), optimizer=problems.SGD
        )
    assert (caught.value.update, caught.value.batch) == (8, 8)
    assert "at update 8 (batch 8)" in str(caught.value)


def test_a_journal_that_reads_what_is_not_yet_made_is_refused():
    rows = np.zeros(2, dtype=[("update", np.int64), ("version_read", np.int64)])
    rows["version_read"] = [0, 2]
    with pytest.raises(hogwild.ArgumentError, match="read a version made after it; it is damaged"):
        Replayed(rows)


def test_more_than_one_worker_is_refused():
    with pytest.raises(hogwild.ArgumentError, match="2 workers cannot replay a journal"):
        problems.train(update=permuted(ORDER), workers=2, updates=len(ORDER))


def test_the_bits_are_those_of_the_same_updates_by_hand():
    model, by_hand = problems.mlp(), problems.mlp()
    problems.train(model, update=permuted(ORDER), workers=1, updates=len(ORDER))
    (x, y), schedule, optimizer = problems.data(), hogwild.Schedule(200, 16), problems.SGD(by_hand.parameters())
    for number in ORDER:
        rows = schedule.indices(number)
        optimizer.zero_grad()
        problems.cross_entropy(by_hand, (x[rows], y[rows])).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), by_hand.parameters(), strict=True))
