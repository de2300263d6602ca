"""The checker: planted differences are found where they are, and nothing passes that should not."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import numpy as np
import problems
import pytest
import torch
from torch import nn

import hogwild
from hogwild.determinism.check import own_training
from hogwild.determinism.compare import Course, marks, spread
from hogwild.determinism.damage import in_order, measure_damage
from hogwild.determinism.flip import add_one_ulp
from hogwild.journal import ROW
from hogwild.rules.lockfree import Hogwild
from hogwild.rules.ordered import Ordered
from hogwild.testing import Fault, PlantedFault, RandomDelays, Seam, planted

KINDS = ("threads", "processes")


def check(model: nn.Module | None = None, **arguments: Any) -> hogwild.Verdict:
    """Check a small training; any argument of `hogwild.check` may be given."""
    settings: dict[str, Any] = {"optimizer": problems.SGD, "batch_size": 16, "kind": "threads", "runs": 2}
    settings |= arguments
    settings.setdefault("updates", 40)
    loss = settings.pop("loss", problems.cross_entropy)
    return hogwild.check(problems.mlp() if model is None else model, problems.data(), loss, **settings)


class FlipsOneBit(Ordered):
    """In every second run: one bit more in one weight of the version that update `at` makes."""

    name: ClassVar[str] = "flips"
    begun: ClassVar[int] = 0

    def __init__(self, at: int, position: int, place: int) -> None:
        super().__init__(1)
        self.at, self.position, self.place = at, position, place
        self.flips = False

    def begin(self, control, version):
        super().begin(control, version)
        type(self).begun += 1
        self.flips = type(self).begun % 2 == 0

    def write_version(self, update, version, source, target, gathered):
        super().write_version(update, version, source, target, gathered)
        if self.flips and update == self.at:
            self.state.slots[target].parameters[self.position].view(torch.int32).view(-1)[self.place] += 1


NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.mark.parametrize(
    ("kind", "at", "position"), [("threads", 0, 0), ("threads", 17, 2), ("threads", 39, 3), ("processes", 17, 1)]
)
def test_one_bit_of_one_weight_at_one_update_is_reported_as_that(kind, at, position):
    verdict = check(update=FlipsOneBit(at, position, place=1), kind=kind, runs=3, controls=False)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_the_rules_with_the_same_bits_pass(update, kind):
    with planted(RandomDelays(seed=5)):
        verdict = check(update=update, kind=kind, runs=3, controls=False)
    assert verdict.identical
    assert verdict.passed
    assert verdict.first_difference is None
    assert verdict.remedy is None
    assert "yes: one digest in 3 runs" in str(verdict)


def racing(**arguments: Any) -> hogwild.Verdict:
    """A check of a run that surely diverges: delays at the seams, drawn anew in every run."""
    with planted(RandomDelays(seed=int.from_bytes(os.urandom(4)), share=0.5)):
        return check(**{"update": "hogwild", "updates": 60, **arguments})


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
    assert "--update ordered" in verdict.conclusion
    assert "with one worker, runs are identical" in verdict.conclusion


def test_another_seed_and_another_worker_count_on_request():
    verdict = check(update="ordered", other_seed=3, other_workers=1)
    assert verdict.controls.workers.identical
    assert not verdict.controls.seed.identical
    assert "other seed" in str(verdict)


class Fickle(nn.Module):
    """Its output depends on a number that nobody seeded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = problems.mlp()

    def forward(self, x):
        return self.inner(x) * (1 + 1e-3 * int.from_bytes(os.urandom(1)))


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


# --- trainings that are not ours


def seeded(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 2)


def test_any_function_can_be_checked():
    verdict = hogwild.check(seeded, runs=3)
    assert verdict.identical
    assert "not ours to vary" in str(verdict)
    numbers = iter(range(10))
    verdict = hogwild.check(lambda: {"w": torch.full((3,), float(next(numbers)))}, runs=3)
    assert verdict.digests == 3
    assert verdict.worst.divergence.max_abs == 2.0  # between the first and the last: every pair is compared


def test_a_function_that_returns_a_run_has_its_first_difference():
    def make_run():
        return problems.train(update=FlipsOneBit(20, 0, 0), updates=40)

    first = hogwild.check(make_run, runs=2).first_difference
    assert first.after <= 20 < first.version


@pytest.mark.parametrize("give", [lambda model: model, lambda model: model.state_dict()], ids=["module", "state dict"])
def test_a_run_is_never_compared_with_itself(give):
    model = seeded()
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: give(model))


def test_a_result_that_shares_memory_with_an_earlier_one_is_refused():
    weight = torch.zeros(4)
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: {"w": weight})


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


def test_what_was_there_before_is_no_run_in_a_fresh_interpreter_either():
    model = seeded()
    with pytest.raises(hogwild.ArgumentError, match="there before"):
        hogwild.check(lambda: model, runs=2, fresh_process=True)


def test_values_that_are_not_finite_are_told():
    assert "not finite" in str(hogwild.check(lambda: {"w": torch.full((3,), torch.nan)}, runs=2))


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


def test_a_stop_does_not_end_the_replays_of_a_damage():
    verdict = check(
        update="locked", workers=1, runs=2, updates=20, evaluate=problems.accuracy, evaluate_every=5,
        loss=Counting(), stop=lambda progress: progress.updates >= 15,
    )  # fmt: skip
    assert [run.updates for run in verdict.runs] == [15, 15]
    assert not verdict.identical
    assert all(damage.updates == 15 and damage.racing < 1e-3 for damage in verdict.damage)


class Counting:
    """A loss that is never twice the same."""

    calls: ClassVar[int] = 0

    def __call__(self, model, batch):
        type(self).calls += 1
        return problems.cross_entropy(model, batch) * (1 + 1e-7 * type(self).calls)

    def __deepcopy__(self, memo):
        return self


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


def test_a_cached_run_is_refused():
    run = problems.train(updates=3)
    with pytest.raises(hogwild.ArgumentError, match="not compared with itself"):
        hogwild.check(lambda: run)


@pytest.mark.parametrize("returned", [None, 3, {}, {"a": 1}, {"w": torch.empty(0)}])
def test_a_function_that_returns_no_state_is_refused(returned):
    with pytest.raises(hogwild.ArgumentError):
        hogwild.check(lambda: returned)


def test_a_dead_worker_ends_the_check():
    fault = PlantedFault(Fault.KILL, Seam.COMPUTING, 10)
    with planted(fault), pytest.raises(hogwild.WorkerError):
        check(update="ordered", kind="processes")
    assert fault.fired


def test_a_function_whose_run_lost_a_worker_is_not_counted():
    def make_run():
        with planted(PlantedFault(Fault.KILL, Seam.COMPUTING, 10)):
            return problems.train(update="ordered", kind="processes")

    with pytest.raises(hogwild.WorkerError, match="lost a worker"):
        hogwild.check(make_run)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"runs": 1}, "runs 1"),
        ({"window": 0}, "window 0"),
        ({"tolerance": -1.0}, "tolerance -1.0"),
        ({"tolerance": 1.0, "measure": "cosine"}, "'cosine'"),
        ({"out": "somewhere"}, "'out'"),
        ({"nonsense": 1}, "'nonsense'"),
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
    with pytest.raises(hogwild.ArgumentError, match="optimizer"):
        hogwild.check(problems.mlp())
    with pytest.raises(hogwild.ArgumentError):
        hogwild.check(seeded, problems.data())


def test_the_callers_model_is_left_as_it_is():
    model = problems.mlp()
    before = hogwild.digest(model)
    check(model, update="ordered", controls=False)
    assert hogwild.digest(model) == before


# --- fresh interpreters


def test_a_fresh_interpreter_shows_what_hides_in_a_process(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # tox sets one, for all that it starts

    def by_hash():
        torch.manual_seed(hash("a word") % 1000)
        return nn.Linear(8, 8)

    assert hogwild.check(by_hash, runs=3).identical  # one process has one hash seed
    assert not hogwild.check(by_hash, runs=3, fresh_process=True).identical


def test_own_trainings_repeat_in_fresh_interpreters():
    verdict = check(update="ordered", fresh_process=True, controls=False)
    assert verdict.identical
    assert verdict.runs[0].updates == 40
    assert verdict.runs[0].digest == problems.train(update="ordered").digest


def test_what_fails_in_a_fresh_interpreter_ends_the_check():
    def leaves():
        os._exit(7)

    with pytest.raises(hogwild.WorkerError, match="status 7"):
        hogwild.check(leaves, fresh_process=True)
    with pytest.raises(hogwild.ArgumentError, match="returned None"):
        hogwild.check(lambda: None, fresh_process=True)


# --- why


def test_explain_varies_one_source_at_a_time():
    verdict = check(update="ordered", explain=True)
    by_name = {source.name: source for source in verdict.sources}
    assert by_name["interleaving"].comparison.identical
    assert by_name["worker count"].comparison.identical
    assert by_name["worker kind"].comparison.identical
    assert not by_name["seed"].comparison.identical
    assert by_name["torch threads"].comparison is not None
    assert "none" in by_name["nondeterministic operations"].note


class Puts(nn.Module):
    """Uses an operation that has no deterministic implementation by PyTorch's own account."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = problems.mlp()

    def forward(self, x):
        table = torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 1.0]))
        return self.inner(x) * table[0]


def test_explain_names_nondeterministic_operations():
    verdict = check(Puts(), update="ordered", explain=True)
    assert "put_" in {source.name: source for source in verdict.sources}["nondeterministic operations"].note
    assert not torch.are_deterministic_algorithms_enabled()

    def function():
        return {"w": torch.zeros(4).put_(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))}

    verdict = hogwild.check(function, explain=True)
    assert "put_" in {source.name: source for source in verdict.sources}["nondeterministic operations"].note


def test_explain_shows_what_torch_threads_do_to_a_function():
    def depends_on_threads():
        return {"w": torch.full((2,), float(torch.get_num_threads()))}

    verdict = hogwild.check(depends_on_threads, explain=True)
    by_name = {source.name: source for source in verdict.sources}
    assert by_name["with one torch thread"].comparison.identical
    assert not by_name["torch threads"].comparison.identical


def test_a_function_that_differs_only_with_several_torch_threads_has_its_source_named():
    def differs_with_threads():
        torch.manual_seed(0 if torch.get_num_threads() == 1 else int.from_bytes(os.urandom(4)))
        return nn.Linear(3, 3)

    torch.set_num_threads(2)
    try:
        verdict = hogwild.check(differs_with_threads, explain=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert "The source is torch's own threads" in verdict.conclusion


def test_a_source_that_cannot_be_varied_is_not_guessed_at():
    verdict = hogwild.check(
        lambda: {"w": torch.rand(1, generator=torch.Generator().manual_seed(_entropy()))}, explain=True
    )
    assert "No source that can be varied explains it" in verdict.conclusion
    verdict = check(Fickle(), update="ordered", explain=True)
    assert "not deterministic even with one worker" in verdict.conclusion
    assert "No source that can be varied explains it" in verdict.conclusion


def _entropy() -> int:
    return int.from_bytes(os.urandom(4))


# --- race damage


def test_one_worker_in_place_has_no_race_damage():
    runs = [problems.train(update="locked", workers=1, updates=30) for _ in range(2)]
    rows, corrected = in_order(runs[0].journal)
    assert corrected == 0
    assert rows["update"].tolist() == list(range(30))


def test_damage_of_a_rule_that_loses_updates_is_seen_and_of_one_that_does_not_is_nil():
    class Drops(Hogwild):
        name: ClassVar[str] = "drops"

        def _apply(self, update, gradient, gathered):
            before = [flat.clone() for flat in self.state.slots[0].flats]
            super()._apply(update, gradient, gathered)
            if update % 10 == 9:
                for flat, value in zip(self.state.slots[0].flats, before, strict=True):
                    flat.copy_(value)

    def damage(rule):
        own = own_training(
            problems.mlp(), problems.data(), problems.cross_entropy,
            optimizer=problems.SGD, update=rule, workers=1, kind="threads", updates=40, batch_size=16,
        )  # fmt: skip
        return measure_damage(own, [own.repeat(), own.repeat()])

    clean, torn = damage("locked"), damage(Drops())
    assert (clean.racing, clean.scheduling, clean.log, clean.corrected) == (0.0, 0.0, 0.0, 0.0)
    assert torn.racing > 1e-3  # the log says that those updates were made, and they were not
    assert torn.scheduling == 0.0


def test_a_journal_in_place_is_put_in_order():
    rows = np.zeros(4, ROW)
    rows["update"], rows["version"], rows["version_read"] = [0, 1, 2, 3], [1, 2, 2, 4], [0, 0, 3, 1]
    ordered, corrected = in_order(rows)
    assert ordered["version"].tolist() == [1, 2, 3, 4]
    assert ordered["version_read"].tolist() == [0, 0, 2, 1]
    assert corrected == 0.25


# --- small parts


def test_marks_begin_close_together_and_end_with_the_run():
    found = sorted(marks(1000, nbytes=4, runs=5))
    assert found[0] == 1
    assert found[-1] == 1000
    assert len(found) <= 24
    assert sorted(marks(1000, nbytes=1 << 40, runs=5)) == [1, 1000]
    assert marks(1, 4, 5) == {1}


def test_the_slope_of_a_course_is_its_growth_per_update():
    updates = tuple(range(1, 40))
    course = Course(updates, tuple(1e-9 * np.exp(0.25 * u) for u in updates))
    assert course.slope == pytest.approx(0.25)
    assert Course((1, 2), (0.1, 0.2)).slope is None


def test_spread_is_the_unbiased_deviation_with_an_interval():
    values = [0.9, 0.92, 0.95, 0.91]
    mean, deviation, low, high = spread(values)
    assert mean == pytest.approx(np.mean(values))
    assert deviation == pytest.approx(np.std(values, ddof=1))
    assert low < deviation < high
    assert spread([0.5]) == (0.5, 0.0, 0.0, 0.0)


def test_one_ulp_is_one_ulp():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        before = torch.randn(3, 4).to(dtype)
        after = before.clone()
        add_one_ulp(after, 7)
        found = hogwild.distance({"w": before}, {"w": after})
        assert (found.differing, found.max_ulp) == (1, 1)
