"""keep_best: the version with the best metric is kept, with the same bits whoever trained it."""

from __future__ import annotations

import threading

import problems
import pytest
from crews import at_rest, controls_of_runs
from hills import FILE, SETTINGS, check_kept, highest, hill
from safetensors.torch import load_file
from traits import KINDS, NAMES, ONE_OF_EACH, SAME_BITS

import hogwild
from hogwild.run.saved.best import BestKeeper, load_best


def test_the_hill_has_its_top_on_the_way():
    row = highest(problems.train(update="ordered", **SETTINGS))
    assert 5 < row["update"] < 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_the_best_version_is_kept(update, kind, tmp_path):
    run = problems.train(update=update, kind=kind, out=tmp_path, **SETTINGS)
    check_kept(run)
    assert hogwild.digest(load_file(tmp_path / FILE)) == run.best.digest
    found = hogwild.load_run(tmp_path).best
    assert found == run.best and hogwild.digest(dict(found.state)) == run.best.digest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_the_best_version_is_kept_where_nothing_is_saved(update, kind):
    """Training does not wait for its evaluation then, whatever the rule."""
    check_kept(problems.train(update=update, kind=kind, **SETTINGS))


def test_the_best_version_where_workers_read_predicted_weights(tmp_path):
    """What is kept is what was evaluated, not what workers read."""
    run = problems.train(
        update="ordered", staleness=3, optimizer=problems.MOMENTUM, out=tmp_path, compensation="auto", **SETTINGS
    )
    assert run.compensation
    check_kept(run)


@pytest.mark.parametrize("update", SAME_BITS)
def test_the_same_best_bits_whoever_trains(update):
    found = {
        (run.best.update, run.best.digest)
        for workers, kind in ((1, "threads"), (2, "processes"), *((3, kind) for kind in KINDS))
        for run in [problems.train(update=update, kind=kind, workers=workers, staleness=2, micro_batches=3, **SETTINGS)]
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("wanted", "lowest"), [("height", False), ("height:max", False), ("height:min", True), ("depth:min", True)]
)
def test_max_or_min(wanted, lowest):
    run = problems.train(update="ordered", **{**SETTINGS, "keep_best": wanted})
    name = wanted.partition(":")[0]
    values = [row[name] for row in run.evaluations]
    assert run.best.value == (min(values) if lowest else max(values))
    assert run.best.metric == name


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        *((name, True) for name in ("test_loss", "error", "rmse", "cross_entropy", "val_ce", "bce", "wer", "fid")),
        *((name, False) for name in ("accuracy", "glossy", "f1", "auc", "once")),
    ],
)
def test_a_name_that_tells_losses_and_errors(name, lowest):
    keeper = BestKeeper(name, None, "", None)
    for update, value in enumerate((0.5, 0.2, 0.9), start=1):
        keeper.see({"update": update, "seconds": 0.0, name: value}, nothing)
    assert keeper.best.value == (0.2 if lowest else 0.9)


def test_the_first_of_equals_and_never_what_is_no_number():
    keeper = BestKeeper("a", None, "", None)
    for update, value in enumerate((float("nan"), 1.0, 2.0, 2.0, float("nan"), float("inf")), start=1):
        keeper.see({"update": update, "seconds": 0.0, "a": value}, nothing)
    assert keeper.best.update == 3
    keeper = BestKeeper("a", None, "", None)
    keeper.see({"update": 1, "seconds": 0.0, "a": float("nan")}, nothing)
    assert keeper.best is None


def test_a_name_with_a_colon():
    keeper = BestKeeper("val:min", None, "", None)
    for update, value in enumerate((0.5, 0.2, 0.9), start=1):
        keeper.see({"update": update, "seconds": 0.0, "val:min": value}, nothing)
    assert keeper.best.value == 0.9, "there is such a metric, and it is not called val"


def test_a_version_that_is_evaluated_again_counts_as_it_is_seen_last(tmp_path):
    """What was shown first was never published, or still written."""
    keeper = BestKeeper("a", tmp_path, "", None)

    def see(update, value):
        keeper.see({"update": update, "seconds": 0.0, "a": value}, nothing)
        kept = load_best(tmp_path)
        assert kept == keeper.best
        return (kept.update, kept.value) if kept else None

    assert see(5, 9.0) == (5, 9.0)
    assert see(5, float("nan")) is None
    assert see(5, 1.0) == (5, 1.0)
    assert see(10, 3.0) == (10, 3.0)
    assert see(10, 2.0) == (10, 2.0)
    assert see(10, 0.5) == (5, 1.0)
    assert see(15, 0.7) == (5, 1.0)


def test_an_evaluation_in_training_mode_does_not_move_what_is_kept():
    def evaluate(model):
        evaluate.before.append(hogwild.digest(model))
        model.train()
        model(problems.data()[0])
        assert hogwild.digest(model) != evaluate.before[-1], "running averages moved"
        return {"a": float(len(evaluate.before))}

    evaluate.before = []
    run = problems.train(
        problems.conv_bn(), update="ordered", updates=20, evaluate=evaluate, evaluate_every=5, keep_best="a"
    )
    assert run.best.update == 20 and run.best.digest == evaluate.before[-1] == run.digest


@pytest.mark.parametrize("saved", [True, False])
def test_training_waits_for_each_evaluation_where_the_run_is_saved(saved, tmp_path, monkeypatch):
    """So that a checkpoint of a later version never lacks one; in memory there is nothing to wait for."""
    passed, reached, looks, controls = threading.Event(), [], [True, False], controls_of_runs(monkeypatch)

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 15:
            passed.set()
        return problems.cross_entropy(model, batch)

    def evaluate(model):
        if not reached and looks.pop():  # the first look is on trial
            if saved:
                at_rest(controls[-1])
            reached.append(passed.wait(0 if saved else 60))
        return hill(model)

    settings = {**SETTINGS, "evaluate": evaluate, "evaluate_every": 10}
    problems.train(update="ordered", kind="threads", loss=loss, out=tmp_path if saved else None, **settings)
    assert reached == [not saved]


def test_the_best_by_a_metric_of_the_moving_average_is_the_average():
    """The score grows with every look, so the last one is the best, of the model and of its average."""
    looks = iter(range(1000))

    def evaluate(model):
        return {"score": float(next(looks))}

    arguments = {"update": "ordered", "updates": 20, "evaluate": evaluate, "evaluate_every": 10, "ema": 0.9}
    of_average = problems.train(keep_best="ema_score", **arguments)
    of_model = problems.train(keep_best="score", **arguments)
    assert of_average.best.digest == of_average.ema_digest != of_average.digest
    assert of_model.best.digest == of_model.digest == of_average.digest


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("accuracy", "there are: height, depth, weight"),
        ("hieght", r"did you mean height\?"),
        ("height:lowest", "'lowest' is neither min nor max; height, height:min and height:max work"),
        ("ema_height", "those of a moving average need one, as by ema=0.999"),
        ("ema_height:max", "those of a moving average need one, as by ema=0.999"),
    ],
)
def test_a_metric_that_there_is_not_is_refused_with_what_would_work(wanted, told):
    with pytest.raises(hogwild.ArgumentError, match=f"keep_best '{wanted}' is no metric that evaluate returns; {told}"):
        problems.train(update="ordered", **{**SETTINGS, "keep_best": wanted})


def test_without_evaluate_it_is_refused_before_any_worker_starts():
    with pytest.raises(hogwild.ArgumentError, match="keep_best 'height' given without evaluate"):
        problems.train(updates=10, keep_best="height")


def nothing(metric):
    """The state of a version that nobody looks at."""
    return {}


@pytest.mark.parametrize("wanted", ["height", "height:min"])
@pytest.mark.parametrize("first", [0.5, float("nan")])
def test_a_metric_that_a_later_evaluation_lacks_is_told_as_that(wanted, first):
    keeper = BestKeeper(wanted, None, "", None)
    keeper.see({"update": 10, "seconds": 0.0, "height": first}, nothing)
    told = "^evaluate returned no 'height' at update 20, though it had before; .*, and this one has: depth$"
    with pytest.raises(hogwild.ArgumentError, match=told):
        keeper.see({"update": 20, "seconds": 0.0, "depth": 1.0}, nothing)


def test_a_metric_that_is_lacking_after_a_checkpoint_is_told_as_that(tmp_path):
    settings = {**SETTINGS, "out": tmp_path, "update": "ordered"}
    with pytest.raises(KeyboardInterrupt):
        problems.train(**settings, callbacks=[problems.interrupting_at(10)])
    settings["evaluate"] = lambda model: {"depth": 1.0}
    with pytest.raises(hogwild.ArgumentError, match="^evaluate returned no 'height' at update .*though it had before"):
        problems.train(**settings, resume=tmp_path)
