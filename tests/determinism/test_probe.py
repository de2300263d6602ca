"""The probe counts lost and doubled updates exactly."""

from __future__ import annotations

import json
from typing import ClassVar

import problems
import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
from torch import nn
from traits import EXACT, KINDS

import hogwild
from hogwild import experiment
from hogwild.cli import main
from hogwild.experiment import Problem, Training
from hogwild.rules.locked import Locked
from hogwild.rules.ordered import Ordered
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, planted


class Drops(Locked):
    """Leaves out every hundredth update."""

    name: ClassVar[str] = "drops"

    def commit(self, update, gradient):
        return True if update % 100 == 99 else super().commit(update, gradient)


class Doubles(Locked):
    """Applies every hundredth update twice."""

    name: ClassVar[str] = "doubles"

    def commit(self, update, gradient):
        if update % 100 == 99:
            super().commit(update, gradient)
        return super().commit(update, gradient)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_drops_every_hundredth_update_is_reported_as_exactly_that(kind):
    found = hogwild.probe(Drops(), kind, updates=600, size=100)
    assert found.applied == 0.99
    assert (found.lost, found.doubled, found.touched) == (6 * 100, 0, 100)
    assert (found.least, found.most) == (594, 594)
    assert not found.exact
    assert "99 % applied" in found.summary()


def test_a_rule_that_doubles_every_hundredth_update_is_reported_as_exactly_that():
    found = hogwild.probe(Doubles(), "threads", updates=1000, size=7)
    assert found.applied == 1.01
    assert (found.lost, found.doubled, found.touched) == (0, 10 * 7, 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", EXACT)
def test_rules_that_promise_it_lose_nothing(update, kind):
    with planted(RandomDelays(seed=3, longest=0.0005)):
        found = hogwild.probe(update, kind, updates=400, size=50)
    assert found.exact
    assert found.applied == 1.0
    assert found.updates == 400


def test_more_workers_get_the_staleness_they_need():
    assert hogwild.probe("ordered", "threads", 4, updates=100).exact
    assert hogwild.probe("sync", "threads", 4, updates=100).exact


def test_a_step_of_a_named_model_is_computed_and_the_model_left_alone():
    model, steps = problems.conv_bn(), []

    def loss(replica, batch):
        steps.append(1)
        return problems.cross_entropy(replica, batch)

    before = hogwild.digest(model)
    found = hogwild.probe("locked", "threads", updates=50, model=model, data=problems.data(), loss=loss)
    assert found.values == sum(parameter.numel() for parameter in model.parameters())
    assert len(steps) >= 50
    assert hogwild.digest(model) == before
    assert found.exact


def test_a_dead_worker_is_not_passed_over():
    fault = PlantedFault(Fault.KILL, Hook.COMPUTING, 10)
    with planted(fault), pytest.raises(hogwild.WorkerError):
        hogwild.probe("ordered", "processes", updates=100)
    assert fault.fired


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"updates": 0}, "updates 0"),
        ({"updates": (1 << 24) + 1}, "16,777,216"),
        ({"size": 0}, "size 0"),
        ({"model": nn.Linear(2, 2)}, "data and loss"),
        ({"update": Ordered(1), "workers": 3}, "staleness"),
        ({"update": "none"}, "'none'"),
    ],
)
def test_bad_arguments_are_one_line(arguments, words):
    with pytest.raises(hogwild.ArgumentError, match=words):
        hogwild.probe(**arguments)


def test_the_command_prints_one_object(capsys):
    assert main(["probe", "--update", "ordered", "--kind", "threads", "--updates", "50", "--json", "--quiet"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["probes"]
    assert found["exact"] is True
    assert found["applied"] == 1.0


def test_the_command_probes_at_the_size_of_an_experiment(capsys):
    assert main(["probe", "digits", "--update", "locked", "--kind", "threads", "--updates", "20"]) == 0
    told = capsys.readouterr().out
    assert "19,210 values" in told
    assert "100 %" in told


def test_what_cannot_be_probed_is_a_row_with_the_reason(capsys, monkeypatch):
    problem = Problem(nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5)), problems.data(), problems.cross_entropy)
    monkeypatch.setattr(experiment, "names", lambda: ["drops"])
    monkeypatch.setattr(experiment, "load", lambda name: Training(name, "?", lambda seed, data: problem, {"epochs": 1}))
    arguments = ["probe", "drops", "--kind", "threads", "--updates", "20", "--quiet"]
    assert main(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "20 updates of 27 values by 2 workers" in told
    assert "ordered threads not probed [1]" in told and "sync threads not probed [2]" in told
    assert "[1] the training draws random numbers in the loss" in told
    assert main([*arguments, "--json"]) == 0
    rows = {row["update"]: row for row in json.loads(capsys.readouterr().out)["probes"]}
    assert rows["ordered"]["exact"] is None and "draws random numbers" in rows["ordered"]["why"]
    assert rows["locked"]["exact"] is True
    assert main([*arguments, "--update", "ordered"]) == 2
    assert "draws random numbers" in capsys.readouterr().err


def test_the_command_fails_where_a_promise_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(Locked, "_apply", lambda *arguments: None)
    assert main(["probe", "--update", "locked", "--kind", "threads", "--updates", "50"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["reductions"], "study"), (["digits", "--size", "5"], "--size"), (["--update", "x"], "'x' is not a rule")],
)
def test_the_command_refuses(arguments, words, capsys):
    assert main(["probe", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_step_whose_loss_tells_its_gradients_is_computed_too():
    def loss(replica, batch):
        weight = replica[0].weight
        return 0.5, {"0.weight": torch.ones_like(weight)}

    found = hogwild.probe("hogwild", "threads", 1, updates=20, model=problems.mlp(), data=problems.data(), loss=loss)
    assert found.exact
