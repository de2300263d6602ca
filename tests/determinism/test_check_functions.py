"""Checks of trainings that are not ours, and of what a fresh interpreter shows."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import problems
import pytest
import torch
from checks import FlipsOneBit, check, seeded
from torch import nn

import hogwild
from hogwild.determinism.check import own_training
from hogwild.determinism.fresh import Fresh
from hogwild.testing import Fault, Hook, PlantedFault, planted


def test_any_function_can_be_checked():
    verdict = hogwild.check(seeded, runs=3)
    assert verdict.identical
    assert "none: this training is repeated as it is; only one by hogwild.train can be given another seed" in str(
        verdict
    )
    numbers = iter(range(10))
    verdict = hogwild.check(lambda: {"w": torch.full((3,), float(next(numbers)))}, runs=3)
    assert verdict.digests == 3
    assert verdict.worst.divergence.max_abs == 2.0  # between the first and the last: every pair is compared
    assert "Usual sources: threads or processes of its own that race, numbers nobody seeded" in verdict.conclusion
    assert verdict.conclusion.endswith("explain=True varies what it can of a function.")


def test_a_function_that_returns_a_run_has_its_first_difference():
    def make_run():
        return problems.train(update=FlipsOneBit(20, 0, 0, bit=12), updates=40)

    first = hogwild.check(make_run, runs=2).first_difference
    assert first.after <= 20 < first.version


def test_nested_states_and_arrays_are_compared_too():
    numbers = iter(range(100))

    def nested():
        return {"model": {"w": torch.full((2,), float(next(numbers)))}, "epoch": torch.tensor(1)}

    def arrays():
        return {"w": np.full(3, float(next(numbers))), "epoch": torch.tensor(1)}

    assert not hogwild.check(nested, runs=2).identical
    assert not hogwild.check(arrays, runs=2).identical
    assert not hogwild.check(lambda: torch.rand(2), runs=2).identical
    array = np.zeros(3)
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: {"w": array}, runs=2)


def test_models_in_a_mapping_are_compared_too():
    models = iter([nn.Linear(2, 1) for _ in range(2)])

    def trained():
        return {"model": next(models), "step": torch.tensor(10)}

    assert not hogwild.check(trained, runs=2).identical


def test_a_state_without_dense_bytes_is_refused_by_name():
    with pytest.raises(hogwild.ArgumentError, match="entry 'w' is a torch.sparse_coo tensor, which has no dense bytes"):
        hogwild.check(lambda: {"w": torch.eye(3).to_sparse()}, runs=2)


def test_values_that_are_not_finite_are_told():
    verdict = str(hogwild.check(lambda: {"w": torch.full((3,), torch.nan), "b": torch.zeros(2)}, runs=2))
    assert "3 of 5 values are NaN or infinite" in verdict


def test_what_is_not_compared_is_told():
    def checkpoint():
        return {"model": {"w": torch.ones(2)}, "seconds": time.time(), "epoch": 3}

    verdict = hogwild.check(checkpoint, runs=2)
    assert verdict.identical
    assert ("not compared", "epoch, seconds: neither a tensor nor an array") in verdict.lines()
    assert "not compared" not in str(hogwild.check(seeded, runs=2))


def test_bits_that_are_no_distance_are_told():
    signs = iter([1.0, -1.0])
    verdict = str(hogwild.check(lambda: {"w": torch.zeros(3) * next(signs)}, runs=2))
    assert "relative L2 0 between the worst pair; 3 values differ in the sign of a zero or the bits of a NaN" in verdict


@pytest.mark.usefixtures("forked_interpreters")
def test_a_function_that_repeats_in_one_process_is_told_of_fresh_ones():
    assert hogwild.check(seeded, runs=2).conclusion == (
        "all runs have the same bits, in one process; fresh_process=True makes each in a new one, with a hash seed of "
        "its own and nothing that an earlier run left."
    )
    assert hogwild.check(seeded, runs=2, fresh_process=True).conclusion == "all runs have the same bits."


def test_a_training_that_was_called_is_told_from_one_to_call():
    with pytest.raises(hogwild.ArgumentError, match="or the function that makes and trains it, uncalled"):
        hogwild.check(seeded())


# --- what is refused


@pytest.mark.parametrize("give", [lambda model: model, lambda model: model.state_dict()], ids=["module", "state dict"])
def test_a_run_is_never_compared_with_itself(give):
    model = seeded()
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: give(model))


def test_a_result_that_shares_memory_with_an_earlier_one_is_refused():
    weight = torch.zeros(4)
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: {"w": weight})


@pytest.mark.usefixtures("forked_interpreters")
def test_what_was_there_before_is_no_run_in_a_fresh_interpreter_either():
    model = seeded()
    with pytest.raises(hogwild.ArgumentError, match="there before"):
        hogwild.check(lambda: model, runs=2, fresh_process=True)


def test_a_cached_run_is_refused():
    run = problems.train(updates=3)
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: run)


@pytest.mark.parametrize("returned", [None, 3, {}, {"a": 1}, {"w": torch.empty(0)}])
def test_a_function_that_returns_no_state_is_refused(returned):
    with pytest.raises(hogwild.ArgumentError):
        hogwild.check(lambda: returned)


def test_a_function_whose_run_lost_a_worker_is_not_counted():
    def make_run():
        with planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 10)):
            return problems.train(update="ordered", kind="processes")

    with pytest.raises(hogwild.WorkerError, match="lost a worker"):
        hogwild.check(make_run)


# --- fresh interpreters


def test_a_fresh_interpreter_shows_what_hides_in_a_process(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # tox sets one, for all that it starts

    def by_hash():
        torch.manual_seed(hash("a word"))
        return nn.Linear(8, 8)

    assert hogwild.check(by_hash, runs=2).identical  # one process has one hash seed
    assert not hogwild.check(by_hash, runs=2, fresh_process=True).identical


def test_own_trainings_repeat_in_fresh_interpreters(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # so each has one of its own
    verdict = check(update="ordered", fresh_process=True, controls=False)
    assert verdict.identical
    assert verdict.runs[0].updates == 40
    assert verdict.runs[0].digest == problems.train(update="ordered").digest


@pytest.mark.usefixtures("forked_interpreters")
def test_fresh_interpreters_train_by_the_kind_that_the_first_one_chose():
    given = {"optimizer": problems.SGD, "update": "locked", "updates": 2, "batch_size": 16}
    training = own_training(problems.mlp(), problems.data(), problems.cross_entropy, **given)
    assert training.config.kind == "auto"
    outcome = Fresh(training).repeat()
    assert outcome.run is not None
    assert outcome.run.kind == training.config.kind


@pytest.mark.usefixtures("forked_interpreters")
def test_what_fails_in_a_fresh_interpreter_ends_the_check():
    def leaves():
        os._exit(7)

    with pytest.raises(hogwild.WorkerError, match="status 7"):
        hogwild.check(leaves, fresh_process=True)
    with pytest.raises(hogwild.ArgumentError, match="returned None"):
        hogwild.check(lambda: None, fresh_process=True)


MEAN = torch.zeros(3)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("mean", MEAN)


def test_models_may_share_a_constant():
    assert hogwild.check(lambda: torch.manual_seed(0) and Centred(), runs=2).identical


@pytest.mark.parametrize(("name", "value"), [("runs", 2.5), ("other_seed", "1"), ("nodes", True), ("window", 10.0)])
def test_numbers_of_a_check_are_whole(name: str, value: Any) -> None:
    with pytest.raises(
        hogwild.ArgumentError, match=f"{name} {value!r} is a {type(value).__name__}; it must be a whole"
    ):
        hogwild.check(lambda: None, **{name: value})


@pytest.mark.parametrize("name", ["other_seed", "other_workers"])
def test_a_control_that_would_not_be_measured_is_refused(name):
    with pytest.raises(hogwild.ArgumentError, match=f"{name} 3 given, and only hogwild.train can be varied"):
        hogwild.check(seeded, **{name: 3})
    with pytest.raises(hogwild.ArgumentError, match=f"{name} 3 given, and controls=False"):
        check(update="hogwild", controls=False, **{name: 3})


def test_predictions_of_a_function_that_trains_are_refused():
    with pytest.raises(hogwild.ArgumentError, match="predict given with a function that trains by itself"):
        hogwild.check(seeded, predict=lambda model: (model(torch.ones(2, 4)), torch.zeros(2)))
