"""Checks on several machines, which are processes here: the number of them as one more source of differences."""

from __future__ import annotations

import os

import problems
import pytest
from checks import check

import hogwild


def scaled_on_machine_1(model, batch):
    loss = problems.cross_entropy(model, batch)
    return 1.1 * loss if os.environ.get("RANK") == "1" else loss


FEW = {"updates": 20, "controls": False}


@pytest.mark.usefixtures("forked_interpreters")
def test_machines_that_train_together_have_the_bits_of_one():
    verdict = check(update="ordered", staleness=2, nodes=3, **FEW)
    assert [(found.nodes, found.comparison.identical) for found in verdict.controls.machines] == [(2, True), (3, True)]
    assert verdict.passed
    assert ("3 machines", "identical") in list(verdict.lines())
    assert verdict.conclusion == "all runs have the same bits, those on up to 3 machines too."
    assert [one["nodes"] for one in verdict.to_dict()["controls"]["machines"]] == [2, 3]


def test_what_differs_from_machine_to_machine_is_found():
    verdict = check(update="ordered", nodes=2, loss=scaled_on_machine_1, recheck=0.0, compensation="none", **FEW)
    assert verdict.identical
    assert not verdict.passed
    assert "those on several have not" in verdict.conclusion
    (found,) = verdict.controls.machines
    assert found.comparison.divergence.relative_l2 > 0


@pytest.mark.usefixtures("forked_interpreters")
def test_machines_that_average_are_compared_with_as_many():
    verdict = check(update="ordered", average_every=5, nodes=2, **FEW)
    assert verdict.passed
    assert ("2 machines", "identical between two runs that average") in list(verdict.lines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes": 0}, "nodes 0 is below 1"),
        ({"update": "hogwild", "nodes": 2}, "or on several that average their models"),
        ({"update": "ordered", "nodes": 3}, "3 workers are over the 2 that staleness 1 keeps busy"),
    ],
)
def test_checks_on_machines_that_cannot_be_made_are_refused_before_any_run(arguments, words):
    with pytest.raises(hogwild.ArgumentError, match=words):
        check(**arguments, controls=False)


def test_only_trainings_of_ours_go_to_several_machines():
    with pytest.raises(hogwild.ArgumentError, match="nodes 2 given, and only hogwild.train can train on several"):
        hogwild.check(problems.mlp, nodes=2)
