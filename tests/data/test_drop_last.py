"""Runs without the last batch of an epoch: it decides bits, and travels with the other settings that do."""

from __future__ import annotations

import problems
import pytest
from torch import nn

import hogwild
from hogwild import ArgumentError
from hogwild.config import RunConfig

SETTINGS = {"update": "ordered", "epochs": 3, "updates": None, "batch_size": 27, "drop_last": True}


def interrupted(model):
    raise KeyboardInterrupt


def test_a_run_that_goes_on_and_its_replay_leave_the_same_out(tmp_path):
    whole = problems.train(problems.mlp(), **SETTINGS)
    assert (whole.updates, whole.samples) == (21, 3 * 7 * 27)
    with pytest.raises(KeyboardInterrupt):
        problems.train(problems.mlp(), out=tmp_path, evaluate=interrupted, evaluate_every=10, **SETTINGS)
    with pytest.raises(ArgumentError, match="drop_last"):
        problems.train(problems.mlp(), out=tmp_path, resume=tmp_path, **SETTINGS | {"drop_last": False})
    run = problems.train(problems.mlp(), out=tmp_path, resume=tmp_path, workers=1, kind="threads", **SETTINGS)
    assert run.digest == whole.digest and run.config.drop_last
    given = {"data": problems.data(), "loss": problems.cross_entropy, "optimizer": problems.SGD}
    assert hogwild.replay(tmp_path, model=problems.mlp(), **given).equal


def test_a_record_from_before_leaves_nothing_out():
    assert not RunConfig.from_mapping({"updates": 1}).drop_last


def test_a_source_makes_its_own_batches():
    class Batches:
        def batch(self, update, generator):
            return problems.data()

    with pytest.raises(ArgumentError, match="^drop_last: data is a Batches, which makes its own batches"):
        problems.train(data=Batches(), updates=3, drop_last=True)


def test_one_sample_that_is_left_for_batch_norm_is_left_out():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    data = tuple(part[:49] for part in problems.data())
    with pytest.raises(hogwild.WorkerError) as caught:
        problems.train(model, data=data, batch_size=16, epochs=1, updates=None, max_restarts=0)
    assert "drop_last=True" in caught.value.__notes__[0]
    assert problems.train(model, data=data, batch_size=16, epochs=1, updates=None, drop_last=True).updates == 3
