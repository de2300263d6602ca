"""A run that gets no better is ended, at the same version whether or not it was interrupted on the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import problems
import pytest

import hogwild
from hogwild import ArgumentError, EarlyStopping
from hogwild.cli import main

EVERY = 5
VALUES = {0: 0.9, 5: 0.5, 10: 0.6, 15: 0.7, 20: 0.7, 25: 0.65, 30: 0.71, 35: 0.1, 40: float("nan"), 45: 0.71, 50: 0.9}


def measured(name="accuracy", sign=1):
    """`evaluate`, whose values are those above: the model's BatchNorm counts its updates."""

    def evaluate(model):
        (version,) = (int(value) for key, value in model.state_dict().items() if key.endswith("num_batches_tracked"))
        return {name: sign * VALUES[version]}

    return evaluate


class Breaking(hogwild.Callback):
    """Ctrl-C at one evaluation, when it is told or when it is asked."""

    def __init__(self, update, method):
        self.update, self.method = update, method

    def on_evaluation(self, progress):
        if self.method == "on_evaluation" and progress.updates == self.update:
            raise KeyboardInterrupt

    def should_stop(self, progress):
        if self.method == "should_stop" and progress.updates == self.update:
            raise KeyboardInterrupt
        return False


def train(*callbacks, evaluate=None, **others):
    settings = {"update": "ordered", "updates": 50, "evaluate_every": EVERY, "evaluate": evaluate or measured()}
    return problems.train(problems.conv_bn(), callbacks=callbacks, **settings | others)


@pytest.mark.parametrize(
    ("given", "ended"),
    [
        ({"patience": 1}, 20),
        ({"patience": 2}, 25),
        ({"patience": 3}, 45),
        ({"patience": 4}, 50),
        ({"patience": 3, "min_delta": 0.05}, 30),
    ],
)
@pytest.mark.parametrize(("name", "metric", "sign"), [("accuracy", "accuracy", 1), ("score", "score:min", -1)])
def test_it_ends_a_run_that_gets_no_better(given, ended, name, metric, sign):
    run = train(EarlyStopping(metric, **given), evaluate=measured(name, sign))
    assert run.updates == ended and run.stopped == ("stop" if ended < 50 else None)


def test_the_lowest_loss_is_best():
    assert train(EarlyStopping("loss", 3), evaluate=measured("loss")).updates == 20


@pytest.fixture(scope="module")
def whole():
    return train(EarlyStopping("accuracy", 3))


METHODS = ("on_evaluation", "should_stop")


@pytest.mark.parametrize(
    ("at", "place", "method"),
    [(at, place, METHODS[(number + place) % 2]) for number, at in enumerate([5, 35, 40, 45]) for place in (0, 1)],
)
def test_a_run_that_is_resumed_counts_on(whole, tmp_path, at, place, method):
    """Interrupted before it is told (place 0) or after that, at each of these versions by both methods."""
    given = [EarlyStopping("accuracy", 3)]
    given.insert(place, Breaking(at, method))
    with pytest.raises(KeyboardInterrupt):
        train(*given, out=tmp_path)
    run = train(EarlyStopping("accuracy", 3), out=tmp_path, resume=tmp_path)
    assert (run.updates, run.digest) == (whole.updates, whole.digest) == (45, whole.digest)


def test_evaluations_before_that_have_no_such_metric_do_not_count(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(Breaking(20, "on_evaluation"), evaluate=measured("loss"), out=tmp_path)
    run = train(EarlyStopping("accuracy", 1), evaluate=measured(), out=tmp_path, resume=tmp_path)
    assert run.updates == 25, "the first accuracy is that of update 20"


def test_a_first_value_that_is_no_number_is_the_worst():
    stopping = EarlyStopping("loss", np.int64(2))
    for update, value in enumerate((float("nan"), 5.0, 4.0, 4.5)):
        stopping.on_evaluation(SimpleNamespace(metrics={"loss": value}, updates=update))
    assert stopping.since == 1


def test_an_object_is_for_several_runs():
    stopping = EarlyStopping("accuracy", 2)
    assert [train(stopping).updates for _ in range(2)] == [25, 25]


def test_a_metric_that_is_none_is_named():
    with pytest.raises(ArgumentError, match="EarlyStopping 'acuracy' is no metric .*; did you mean accuracy"):
        train(EarlyStopping("acuracy", 2))
    assert EarlyStopping("accuracy").patience == 3
    with pytest.raises(ArgumentError, match="EarlyStopping has no 'accuracy' to look at; give evaluate"):
        problems.train(update="ordered", updates=50, evaluate_every=EVERY, callbacks=[EarlyStopping("accuracy", 2)])


@pytest.mark.parametrize(
    ("given", "word"), [((0,), "patience 0"), ((True,), "patience True"), ((1, -1), "min_delta -1")]
)
def test_what_cannot_work_is_refused(given, word):
    with pytest.raises(ArgumentError, match=word):
        EarlyStopping("accuracy", *given)
    with pytest.raises(ArgumentError, match="metric 3 is no name of a metric"):
        EarlyStopping(3)


# --- from the command line

FILE = """
import torch
import hogwild

def build() -> hogwild.Problem:
    \"\"\"A metric that never gets better.\"\"\"
    loss = lambda model, batch: model(batch).square().mean()
    return hogwild.Problem(torch.nn.Linear(2, 1), torch.randn(64, 2), loss, lambda model: {"flat": 1.0})

hogwild.define_experiment(build, updates=60, batch_size=8, lr=0.01)
"""
PATIENT = ["--update", "ordered", "--evaluate-every", "5", "--quiet", "--patience", "3"]


def test_patience_ends_a_run_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flat.py").write_text(FILE, encoding="utf-8")
    assert main(["run", "flat.py", *PATIENT, "--keep-best", "flat", "--out", "run"]) == 0
    run = hogwild.load_run("run")
    assert (run.stopped, run.updates, run.best.update, run.config.patience) == ("stop", 20, 5, 3)
    assert main(["replay", "run"]) == 0


def test_patience_needs_a_metric(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("flat.py").write_text(FILE, encoding="utf-8")
    assert main(["run", "flat.py", *PATIENT, "--out", "run"]) == 2
    told = "hogwild: patience 3 given without keep_best, the metric that it waits for; --keep-best accuracy names one\n"
    assert capsys.readouterr().err == told
