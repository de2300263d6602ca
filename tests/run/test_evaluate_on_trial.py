"""Where a metric is named, `evaluate` is asked once before a run that is new: a mistake costs no training."""

from __future__ import annotations

import problems
import pytest
import torch
from hills import SETTINGS, hill, interrupted

import hogwild
from hogwild import ArgumentError, EarlyStopping

ORDERED = {"update": "ordered", "updates": 20, "evaluate_every": 5, "kind": "threads"}


class Asked:
    """`evaluate`, which counts how often it was asked, and disturbs what it can."""

    def __init__(self):
        self.times = 0

    def __call__(self, model):
        self.times += 1
        model.train()
        model(problems.data()[0][:16])  # moves running averages
        for parameter in model.parameters():
            parameter.data.add_(torch.rand(1))
        return {"accuracy": 0.1 * self.times}


class Beginning(hogwild.Callback):
    def on_begin(self, info):
        raise AssertionError("a run has begun")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"keep_best": "acuracy"}, "keep_best 'acuracy' is no metric that evaluate returns; did you mean accuracy?"),
        ({"callbacks": [EarlyStopping("acuracy", 2)]}, "EarlyStopping 'acuracy' is no metric .* mean accuracy?"),
        ({"keep_best": "accuracy:least"}, "'least' is neither min nor max"),
        ({"keep_best": "ema_accuracy"}, "those of a moving average need one"),
    ],
)
def test_a_metric_that_is_misspelt_is_refused_before_the_run(given, told, tmp_path):
    model, evaluate = problems.conv_bn(), Asked()
    before = hogwild.digest(model)
    settings = {**ORDERED, **given, "callbacks": [*given.get("callbacks", ()), Beginning()]}
    with pytest.raises(ArgumentError, match=told):
        problems.train(model, evaluate=evaluate, out=tmp_path / "run", **settings)
    assert evaluate.times == 1 and hogwild.digest(model) == before
    assert not (tmp_path / "run").exists() or not [*(tmp_path / "run").iterdir()]


def test_what_evaluate_raises_is_told_before_the_run(tmp_path):
    with pytest.raises(AttributeError) as caught:
        problems.train(evaluate=lambda model: model.weigth, keep_best="accuracy", callbacks=[Beginning()], **ORDERED)
    assert caught.value.__notes__ == ["raised by evaluate=, which was asked on trial, before the run"]


@pytest.mark.parametrize("end", [lambda: None, lambda: 1 / 0], ids=["returns nothing", "raises"])
def test_a_trial_that_fails_leaves_the_model_as_it_was(end):
    model, disturbs = problems.conv_bn(), Asked()
    before = hogwild.digest(model)
    settings = {**ORDERED, "keep_best": "accuracy", "callbacks": [Beginning()]}
    with pytest.raises((ArgumentError, ZeroDivisionError)):
        problems.train(model, evaluate=lambda model: disturbs(model) and end(), **settings)
    assert disturbs.times == 1 and hogwild.digest(model) == before


def test_a_metric_named_as_one_of_the_moving_average_is_refused_before_the_run():
    settings = {**ORDERED, "keep_best": "accuracy", "ema": 0.9, "callbacks": [Beginning()]}
    with pytest.raises(ArgumentError, match="a metric 'ema_accuracy', as one of the moving average is named"):
        problems.train(evaluate=lambda model: {"accuracy": 1.0, "ema_accuracy": 1.0}, **settings)


def test_the_trial_changes_no_bit_and_is_not_recorded():
    plain = problems.train(problems.conv_bn(), evaluate=Asked(), **ORDERED)
    kept = problems.train(problems.conv_bn(), evaluate=Asked(), keep_best="accuracy", ema=0.9, **ORDERED)
    assert kept.digest == plain.digest
    assert (
        [row["update"] for row in kept.evaluations] == [row["update"] for row in plain.evaluations] == [5, 10, 15, 20]
    )


def test_a_metric_of_the_moving_average_is_known_before_the_run():
    run = problems.train(evaluate=problems.accuracy, keep_best="ema_accuracy", ema=0.9, **ORDERED)
    assert run.best.metric == "ema_accuracy"


def test_evaluate_is_not_asked_where_nothing_is_named_nor_of_a_run_that_is_resumed(tmp_path):
    evaluate = Asked()
    problems.train(problems.conv_bn(), evaluate=evaluate, **ORDERED)
    assert evaluate.times == 4
    interrupted(tmp_path, "ordered", 30)
    calls = []
    rest = {**SETTINGS, "evaluate": lambda model: calls.append(0) or hill(model)}
    problems.train(update="ordered", out=tmp_path, resume=tmp_path, **rest)
    assert len(calls) == 7, "those of updates 30, 35, … 60"


def test_a_callback_of_ones_own_looks_at_the_trial():
    seen = []

    class Looking(hogwild.Callback):
        def on_trial(self, metrics):
            seen.append(dict(metrics))

    problems.train(evaluate=problems.accuracy, callbacks=[Looking()], **ORDERED)
    problems.train(callbacks=[Looking()], **ORDERED)
    assert [[*one] for one in seen] == [["accuracy"], []]


def test_progress_tells_the_epoch():
    class Epochs(hogwild.Callback):
        def on_evaluation(self, progress):
            epochs.append(progress.epoch)

    epochs = []
    settings = {"update": "ordered", "kind": "threads", "evaluate": problems.accuracy, "callbacks": [Epochs()]}
    run = problems.train(epochs=2, **settings)
    assert epochs == [1.0, 2.0]
    epochs.clear()
    problems.train(epochs=2, evaluate_every=run.updates // 4, **settings)
    assert epochs[0] == pytest.approx(run.updates // 4 / (run.updates / 2)) and epochs[-1] == 2.0


def test_a_source_that_cannot_say_its_length_has_no_epochs():
    class Endless:
        def __len__(self):
            raise TypeError("no length")

        def batch(self, number, generator):
            return tuple(part[:16] for part in problems.data())

    told = []
    run = hogwild.train(
        problems.mlp(), Endless(), problems.cross_entropy, optimizer=problems.MOMENTUM, progress=told.append,
        update="hogwild", kind="threads", workers=1, updates=6,
    )  # fmt: skip
    assert run.updates == 6 and [one.epoch for one in told] == [None] * len(told) != []
