"""The staleness study settles its claims, and names the claim that a planted fault breaks.

Its accuracies are checked twice: on tables that are made up, one wrong number each, and on short trainings with a
fault in the rule, in the plain loop or in the remedy.
"""

from __future__ import annotations

import warnings

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from hogwild.experiments import _staleness, staleness
from hogwild.experiments._staleness import Bench, Cell
from hogwild.experiments.staleness import ADAM, LARGE, MOMENTUM, RELU, SGD

from hogwild.experiment import Study, StudySettings
from hogwild.rules.ordered import Ordered

SETTINGS = {"SGD": SGD, "large": LARGE, "momentum": MOMENTUM, "Adam": ADAM, "ReLU": RELU}


def unsettled(claims):
    return [claim.text for claim in claims if not claim.settled]


# tables that are made up


class Imagined(Bench):
    """A bench whose accuracies are read off a rule of their own: no training."""

    def __init__(self, wrong):
        super().__init__(seeds=(0,))
        object.__setattr__(self, "wrong", wrong)

    def cell(self, setting, tau):
        strength = setting.step * (tau + 1) if setting.compensation == "none" else 1
        usual = 0.97 if strength < 1.5 or setting.method == "Adam" else 0.6 if strength < 4 else 0.1
        if setting.activation == "tanh" and setting == MOMENTUM and tau == 1:
            usual = 0.965
        accuracy = self.wrong.get((setting, tau), usual)
        return self.cells.setdefault((setting, tau), Cell(setting, tau, (accuracy,), ("",)))


def imagined(wrong):
    bench = Imagined(wrong)
    return unsettled([*staleness.costs(bench), *staleness.compensated(bench), *staleness.remedies(bench)])


def test_a_table_like_the_one_seen_settles_every_claim():
    assert imagined({}) == []


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        ({(SGD, 7): 0.95}, "SGD 0.1 loses at most"),
        ({(LARGE, tau): 0.97 for tau in (3, 7, 15)}, "SGD without momentum learns at any lr"),
        ({(MOMENTUM, tau): 0.97 for tau in (3, 7, 15)}, "momentum 0.9 learns at every τ"),
        ({(MOMENTUM, 7): 0.3}, "does not learn at all"),
        ({(ADAM, 7): 0.6}, "Adam 0.01 learns up to τ = 7"),
        ({(MOMENTUM.compensated, 15): 0.94}, "SGD 0.1, momentum 0.9 with tanh, compensated: within"),
        ({(RELU.compensated, 1): 0.88}, "SGD 0.1, momentum 0.9 with ReLU, compensated: within"),
        ({(RELU, 1): 0.96}, "whatever the network"),
        ({(MOMENTUM.divided(by), 3): 0.9 for by in (2, 4, 8)}, "lr / (τ + 1)"),
        ({(MOMENTUM.with_implicit_momentum_of(7), 7): 0.93}, "momentum 1 − (1 − μ)(τ + 1)"),
        ({(SGD, 0): 0.85}, "SGD learns wherever"),
        ({(LARGE, 7): 0.5}, "SGD does not learn where"),
    ],
)
def test_one_wrong_number_leaves_its_claim_unsettled(wrong, claim):
    assert any(claim in text for text in imagined(wrong))


def test_without_a_cost_there_is_nothing_to_make_up_for():
    nothing = {(one, tau): 0.97 for one in SETTINGS.values() for tau in (0, 1, 3, 7, 15)}
    assert "some settings lose accuracy, and so need a remedy" in imagined(nothing)


@pytest.mark.parametrize(("tau", "left"), [(0, 0.9), (1, 0.8), (3, 0.6), (7, 0.2), (9, 0.0), (20, 0.0)])
def test_the_momentum_that_is_left(tau, left):
    lowered = MOMENTUM.with_implicit_momentum_of(tau)
    assert lowered.momentum == left
    if left:
        implicit = 1 - 1 / (tau + 1)
        assert (1 - lowered.momentum) * (1 - implicit) == pytest.approx(1 - MOMENTUM.momentum)


# short trainings


def test_the_rule_is_the_plain_loop():
    assert unsettled(staleness.same_bits(Bench((0,), (0, 3), 1))) == []


def read_newest(self, ticket):
    """A rule that ignores τ."""
    self.version_read = ticket.update
    slot = self.state.slots[self.place(ticket.update)]
    return self.seat.binding.point_at(slot.parameters, slot.buffers)


def test_a_rule_that_ignores_staleness_is_reported(monkeypatch):
    monkeypatch.setattr(Ordered, "read", read_newest)
    bench = Bench((0,), (0, 3), 1)
    serial, stale = staleness._by_hand(bench, 0, "serial"), staleness._by_hand(bench, 3, "stale")
    assert serial.settled
    assert not stale.settled
    assert "same digest for 0 of 4" in stale.measured
    assert not staleness._hopeless([bench.cell(MOMENTUM, 3)]).settled
    assert bench.cell(MOMENTUM, 3).digests == bench.cell(MOMENTUM, 0).digests


def step_on_the_newest(stepper, model, old, batch):
    """A plain loop that takes every gradient on the newest model."""
    STEP(stepper, model, model, batch)


STEP = _staleness._step


def test_a_plain_loop_without_delay_is_told_from_one_with(monkeypatch):
    monkeypatch.setattr(_staleness, "_step", step_on_the_newest)
    bench = Bench((0,), (0, 3), 1)
    assert staleness._by_hand(bench, 0, "").settled
    assert not staleness._by_hand(bench, 3, "").settled


def depends_on_workers(self, model, setting, tau, seed, workers=1, kind="threads"):
    """One thread whatever is asked for, and another schedule where more were."""
    return TRAIN(self, model, setting, tau, seed + workers - 1)


TRAIN = Bench.train


def test_bits_that_depend_on_the_workers_are_reported(monkeypatch):
    monkeypatch.setattr(Bench, "train", depends_on_workers)
    claim = staleness._any_workers(Bench((0,), (0, 3), 1))
    assert not claim.settled
    assert claim.text.startswith("one worker gives the same bits")


def test_the_whole_study_at_one_seed_and_six_epochs(monkeypatch, tmp_path):
    monkeypatch.setattr(staleness, "plan", lambda settings: Bench((settings.seed,), (0, 3), 6))
    monkeypatch.setattr(staleness, "same_bits", lambda bench: [])  # above
    draws, threads = torch.get_rng_state(), torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = staleness.run(StudySettings(out=tmp_path / "figures"))
    assert unsettled(found.claims) == []
    assert len({claim.text for claim in found.claims}) == len(found.claims)
    assert [path.name for path in found.figures] == ["staleness.png"]
    assert all(path.stat().st_size > 5000 for path in found.figures)
    assert "compensation='auto'" in found.answer
    assert torch.equal(torch.get_rng_state(), draws), "a study must leave torch's generator as it was"
    assert torch.get_num_threads() == threads


def test_the_study_and_its_seeds(tmp_path):
    assert isinstance(staleness.experiment, Study)
    assert staleness.experiment.name == "staleness"
    assert staleness.plan(StudySettings(out=tmp_path, seed=5)).seeds == (5, 6, 7)
    assert len(staleness.plan(StudySettings(out=tmp_path, full=True)).seeds) == 10
