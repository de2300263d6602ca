"""The checker: planted differences are found where they are, and nothing passes that should not."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import ClassVar

import problems
import pytest
import torch
from checks import EverySecondRun, Fickle, FlipsOneBit, check, racing, seeded
from torch import nn
from traits import KINDS, SAME_BITS

import hogwild
from hogwild.determinism.verdict import _times
from hogwild.rules.ordered import Ordered
from hogwild.rules.sync import Sync
from hogwild.shared.words import Word
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, planted

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.mark.parametrize(
    ("kind", "at", "position"), [("threads", 0, 0), ("threads", 17, 2), ("threads", 39, 3), ("processes", 17, 1)]
)
def test_one_bit_of_one_weight_at_one_update_is_reported_as_that(kind, at, position):
    verdict = check(update=FlipsOneBit(at, position, element=1), kind=kind, runs=3, controls=False)
    first = verdict.first_difference
    assert not verdict.identical
    assert not verdict.passed
    assert verdict.digests == 2
    assert first.update == at
    assert (first.after, first.version, first.seen_at) == (at, at + 1, at + 1)
    assert first.parameter == NAMES[position]
    assert first.parameters == (NAMES[position],)
    assert (first.values, first.ulp) == (1, 1)
    assert f"at update {at}: 1 value of {NAMES[position]}, up to 1 ULP" in str(verdict)


def test_where_not_every_version_is_sealed_reruns_narrow_the_bracket(monkeypatch):
    monkeypatch.setattr("hogwild.determinism.check._SEALED_EACH", 0)
    monkeypatch.setattr("hogwild.determinism.compare.marks.__defaults__", (2, 1 << 29))
    verdict = check(update=FlipsOneBit(137, 2, 5), updates=300, controls=False)
    assert verdict.first_difference.update == 137
    assert (verdict.first_difference.values, verdict.first_difference.ulp) == (1, 1)


class LastSetFlips(EverySecondRun, Sync):
    """In every second run: the last version has a bit more in one weight, or three where its set is not a whole one."""

    name: ClassVar[str] = "last-set-flips"

    def write_version(self, update, version, source, target, gathered):
        super().write_version(update, version, source, target, gathered)
        if self.flips and version == 6:
            members = self._members(update, self.control[Word.TOTAL])
            bits = 1 if members == self.tickets_per_update else 3
            self.state.slots[target].parameters[0].view(torch.int32).view(-1)[0] += bits


def test_the_last_set_of_fewer_micro_batches_is_seen_as_it_was():
    """13 batches of an epoch are six sets of two and one of one."""
    first = check(update=LastSetFlips(2), updates=None, epochs=1, controls=False).first_difference
    assert (first.update, first.values, first.ulp) == (6, 1, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_the_rules_with_the_same_bits_pass(update, kind):
    with planted(RandomDelays(seed=5)):
        verdict = check(update=update, kind=kind, runs=3, controls=False)
    assert verdict.identical
    assert verdict.passed
    assert verdict.first_difference is None
    assert verdict.remedy is None
    assert "yes: one digest in 3 runs" in str(verdict)


def test_a_rule_that_races_fails_and_the_verdict_says_why():
    verdict = racing(runs=3, window=20, evaluate=problems.accuracy)
    assert not verdict.passed
    assert verdict.first_difference.update is None  # versions are not exact there
    assert verdict.first_difference.version <= 60
    assert verdict.controls.serial.identical
    assert 0 < verdict.controls.one_ulp.divergence.relative_l2 < verdict.worst.divergence.relative_l2
    assert verdict.harm > 1
    assert [damage.updates for damage in verdict.damage] == [20, 60]
    assert all(damage.racing >= 0 and damage.scheduling > 0 for damage in verdict.damage)
    assert verdict.audit is not None
    assert verdict.remedy.digests == 1
    assert verdict.remedy.relative_speed > 0
    assert 'For the same bits every time: update="ordered" (' in verdict.conclusion and "--" not in verdict.conclusion
    told = str(verdict)
    for words in ("no: 3 digests", "between update", "one-ULP control", "serial control", "race damage", "audit"):
        assert words in told
    found = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    for key in (
        "identical", "digests", "runs", "first_difference", "divergence", "controls", "audit", "staleness", "verdict",
    ):  # fmt: skip
        assert key in found
    assert {"update", "parameter", "values", "ulp"} <= set(found["first_difference"])
    assert {"serial", "one_ulp"} <= set(found["controls"])
    assert found["runs"] == len(found["digests"]) == 3
    assert "--update ordered" in replace(verdict, typed=True).conclusion
    assert "with one worker, runs are identical" in verdict.conclusion


def begins_late(hook, seat):
    """The second worker comes when the first has made every update."""
    while seat.index == 1 and seat.tickets_handed_out < 10:
        time.sleep(1e-3)


def test_the_same_bits_under_a_rule_that_races_are_called_luck():
    with planted(begins_late):
        verdict = check(update="hogwild", updates=10, controls=False)
    assert verdict.identical
    assert "the rule hogwild does not promise them. In 2 of 2 runs one worker made every update" in verdict.conclusion
    assert check(update="hogwild", updates=10, workers=1, controls=False).conclusion == "all runs have the same bits."

    class Own(Ordered):
        name: ClassVar[str] = "own"

    for rule in ("ordered", Own(1, "none")):  # of a rule of one's own it is not known
        assert check(update=rule, updates=10, controls=False).conclusion == "all runs have the same bits."


def test_another_seed_and_another_worker_count_on_request():
    verdict = check(update="ordered", other_seed=3, other_workers=1)
    assert verdict.controls.workers.identical
    assert not verdict.controls.seed.identical
    assert "other seed" in str(verdict)


def test_a_training_that_differs_even_serially_is_called_that():
    verdict = check(Fickle(), update="ordered")
    assert not verdict.controls.serial.identical
    assert not verdict.passed
    assert "not deterministic even with one worker" in verdict.conclusion
    assert "DIFFERS" in str(verdict)


def test_a_tolerance_lets_small_differences_pass_and_large_ones_not():
    flip = {"update": FlipsOneBit(39, 3, 0), "controls": False}
    assert check(**flip, tolerance=1, measure="max_ulp").passed
    assert check(**flip, tolerance=1e-6).passed
    assert not check(**flip, tolerance=0.0).passed
    assert "within the tolerance (max_ulp ≤ 1)" in check(**flip, tolerance=1, measure="max_ulp").conclusion


def test_predictions_are_compared_where_the_training_tells_them():
    def predict(model):
        x, y = problems.data()
        with torch.no_grad():
            return model(x), y

    verdict = racing(predict=predict, controls=False)
    pair = verdict.worst.predictions
    assert pair.samples == 200
    assert 0 <= pair.churn <= 1
    assert pair.logit_correlation > 0.5
    assert "churn" in str(verdict)


def test_predictions_may_come_without_targets():
    verdict = racing(predict=lambda model: (model(problems.data()[0]), None), controls=False)
    assert verdict.worst.predictions.samples == 200
    assert verdict.worst.predictions.accuracy_a is None


def test_equal_bits_predict_alike_for_the_model_comes_in_eval_mode():
    seen = []

    def predict(model):
        seen.append((model.training, torch.is_grad_enabled()))
        x, y = problems.data()
        return model(x), y

    verdict = check(problems.dropout(), update="ordered", kind="processes", predict=predict, controls=False)
    assert verdict.identical and seen == [(False, False)] * 2
    assert verdict.worst.predictions.churn == 0


@pytest.mark.parametrize(
    ("predict", "found"),
    [(lambda model: model(problems.data()[0]), r"a Tensor of shape \(200, 3\)"), (lambda model: None, "a NoneType")],
)
def test_predictions_without_targets_are_refused_by_name(predict, found):
    with pytest.raises(
        hogwild.ArgumentError, match=rf"predict gave {found}; it must give \(logits of shape \(N, C\), "
    ):
        check(update="locked", workers=1, updates=2, predict=predict, controls=False)


def test_runs_that_end_at_different_updates_are_told_apart_from_others():
    lengths = iter([6, 3, 6, 6])

    def evaluate(model):
        return {"left": float(next(lengths, 6))}

    verdict = check(
        update="locked", workers=1, runs=2, updates=6, evaluate=evaluate, evaluate_every=3, controls=False,
        stop=lambda progress: progress.metrics["left"] == 3,
    )  # fmt: skip
    assert sorted(run.updates for run in verdict.runs) in ([3, 6], [6, 6], [3, 3])
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_controls_see_what_a_worker_sees():
    def loss(model, batch):
        noise = torch.rand(1, generator=hogwild.worker_info().generator)
        return problems.cross_entropy(model, batch) * (1 + noise.item())

    assert check(update="ordered", loss=loss, explain=True).controls.one_ulp is not None


def test_where_no_weight_can_be_changed_the_control_is_left_out():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return self.weight.expand(len(x), 3) * 0 + self.weight.detach()

    verdict = check(Constant(), update="ordered", updates=3)
    assert verdict.controls.one_ulp is None or verdict.controls.one_ulp.identical
    assert verdict.controls.serial.identical


def test_runs_that_a_stop_ends_elsewhere_are_not_blamed_on_their_workers():
    asked = itertools.count()
    stop = {"evaluate": problems.accuracy, "evaluate_every": 10, "stop": lambda progress: next(asked) >= 5}
    verdict = check(update="ordered", updates=40, **stop)
    assert [run.updates for run in verdict.runs] == [40, 20] and verdict.controls.serial.identical
    assert (
        "different numbers of updates. As far as was noted they had the same bits until then: what ends them"
        in verdict.conclusion
    )
    assert "interleave" not in verdict.conclusion


def test_a_dead_worker_ends_the_check():
    fault = PlantedFault(Fault.KILL, Hook.COMPUTING, 10)
    with planted(fault), pytest.raises(hogwild.WorkerError):
        check(update="ordered", kind="processes")
    assert fault.fired


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"runs": 1}, "runs 1"),
        ({"window": 0}, "window 0"),
        ({"tolerance": -1.0}, "tolerance -1.0"),
        ({"tolerance": 1.0, "measure": "cosine"}, "'cosine'"),
        ({"measure": "cosine"}, "'cosine'"),
        ({"tolerance": True}, "tolerance True is not a number"),
        ({"out": "somewhere"}, "'out'; it repeats a training"),
        ({"nonsense": 1}, "'nonsense'; it takes those of hogwild.train"),
        ({"updat": "ordered"}, "'updat'; 'update' is one"),
        ({"lr": 1.0}, "'lr'"),
        ({"other_workers": 0}, "other_workers 0"),
        ({"update": "ordered", "other_workers": 4}, "staleness"),
        ({"tolerance": "small"}, "'small'"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(hogwild.ArgumentError, match=words):
        check(**arguments)
    with pytest.raises(hogwild.ArgumentError):
        hogwild.check(3)
    with pytest.raises(hogwild.ArgumentError, match="^loss is a tuple, .* pass data, then loss$"):
        hogwild.check(problems.mlp(), problems.cross_entropy, problems.data(), optimizer=problems.SGD, updates=3)
    with pytest.raises(hogwild.ArgumentError, match="optimizer"):
        hogwild.check(problems.mlp())
    with pytest.raises(hogwild.ArgumentError):
        hogwild.check(seeded, problems.data())


def test_a_factor_is_written_out_up_to_a_billion():
    assert [_times(factor) for factor in (0.123, 1.26, 34.0, 268_400.0, 1.3e12)] == [
        "0.12", "1.3", "34", "270,000", "1.3e+12",
    ]  # fmt: skip


def test_the_callers_model_is_left_as_it_is():
    model = problems.mlp()
    before = hogwild.digest(model)
    check(model, update="ordered", controls=False)
    assert hogwild.digest(model) == before
