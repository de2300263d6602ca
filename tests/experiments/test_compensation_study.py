"""The compensation study settles its claims on a table like the one seen, and names the claim that one wrong number
breaks; its tasks are trained as it says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("gymnasium")

from hogwild.experiments import _delays, _to_accuracy, compensation
from hogwild.experiments._delays import Delays, Trained, tasks, train_task
from hogwild.experiments.compensation import Sight

from hogwild.optim.stability import is_safe_step

SERIAL = {"accuracy": 0.97, "return": 400.0, "loss": 0.005}
TASKS = "digits, conv net with BatchNorm", "topics of texts, an embedding"
CURVATURE = 2.0  # of every task; with SGD and momentum 0.9 more than lr 0.05 bears at τ = 3, not at 1


class Imagined(Delays):
    """Cells that are made up: no training."""

    def __init__(self, wrong):
        super().__init__(seeds=(0,))
        object.__setattr__(self, "wrong", wrong)

    def trained(self, task, rate, tau, compensation="none"):
        serial, goes_wrong = SERIAL[task.metric], compensation == "none" and compensation_free_fails(task, rate, tau)
        usual = (math.inf if task.is_loss else 0.1 * serial) if goes_wrong else serial
        value = self.wrong.get((str(task), tau, compensation), usual)
        return Trained(task, (value,), (100.0 if tau == 0 else 200.0,), (tau > 0 and warns(rate, tau),))


def warns(rate, tau):
    return not is_safe_step(rate * CURVATURE, tau, 0.9)


def compensation_free_fails(task, rate, tau):
    return tau > 0 and (task.method == "Adam" or warns(rate, tau))


def unsettled(wrong):
    sight = Sight(Imagined(wrong), tuple(compensation._rows(full=False)))
    claims = [*compensation.held(sight), compensation.early(sight)]
    claims += [compensation.foreseen(sight, method) for method in ("SGD", "Adam")]
    assert compensation.table(sight).rows
    assert compensation.answer(sight)
    return [claim.text for claim in claims if not claim.settled]


def test_a_table_like_the_one_seen_settles_every_claim():
    assert unsettled({}) == []


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        ({("digits, conv net with BatchNorm, SGD", 3, "auto"): 0.95}, "digits, conv net with BatchNorm, SGD 0.05"),
        ({("topics of texts, an embedding, Adam", 15, "auto"): 0.9}, "topics of texts, an embedding, Adam"),
        ({("CartPole, REINFORCE, Adam", 7, "auto"): 300.0}, "CartPole"),
        ({("regression on a curve, tanh, SGD", 15, "auto"): math.inf}, "regression on a curve, tanh, SGD"),
        (
            {(name, tau, "none"): 0.97 for name in ("digits, conv net with BatchNorm, SGD",) for tau in (3, 7, 15)}
            | {("topics of texts, an embedding, SGD", tau, "none"): 0.97 for tau in (1, 3)},
            "as it is set, a run of SGD is warned",
        ),
        (
            {(f"{TASKS[0]}, Adam", tau, "none"): 0.97 for tau in (1, 3, 7)} | {(f"{TASKS[1]}, Adam", 1, "none"): 0.97},
            "as it is set, a run of Adam is warned",
        ),
    ],
)
def test_one_wrong_number_leaves_its_claim_unsettled(wrong, claim):
    assert any(text.startswith(claim) for text in unsettled(wrong))


@pytest.mark.parametrize("task", tasks(), ids=str)
def test_each_task_begins_to_learn(task):
    """A few updates of each, serial: the metric is there, and the loss of the first is not that of the last."""
    short = {"updates": 6, "batch_size": task.lengths.get("batch_size", 64)}
    few = _delays.Task(**{**vars(task), "lengths": short})
    run = train_task(few, task.rates[1], 0, "none", 0)
    assert run.updates == 6
    assert math.isfinite(run.metrics[task.metric])


def test_the_way_to_a_value():
    """Nine tenths of it: for a loss, of its logarithm."""

    class Ran:
        evaluations = ({"update": 0, "accuracy": 0.1, "loss": 1.0}, {"update": 5, "accuracy": 0.9, "loss": 0.2})

    accuracy, loss = tasks()[0], tasks()[4]
    assert _delays._near(Ran, accuracy, 0.95) == 5
    assert _delays._near(Ran, accuracy, 0.999) == math.inf
    assert _delays._near(Ran, loss, 0.17) == 5
    assert _delays._near(Ran, loss, 0.1) == math.inf


class Arrived:
    """A run that has come to that accuracy after that many seconds."""

    def __init__(self, seconds, accuracy):
        self.metrics = {"accuracy": accuracy}
        rows = [(0.1, 24, 0.2), (seconds, 48, accuracy)]
        self.evaluations = [dict(zip(("seconds", "update", "accuracy"), row, strict=True)) for row in rows]


def raced():
    arrived = {1: (8.0, 0.98), 2: (4.0, 0.976), 4: (3.0, 0.98), 8: (2.0, 0.99)}
    runs = {(workers, 0): Arrived(*of) for workers, of in arrived.items()}
    return _to_accuracy.Race(tasks()[0], 0.05, (0,), runs)


def test_more_workers_arrive_sooner():
    assert _to_accuracy.arrives_sooner(raced()).settled
    table = _to_accuracy.table_of_arrivals(raced())
    assert [row[1] for row in table.rows] == ["8 [8–8]", "4 [4–4]", "3 [3–3]", "2 [2–2]"]


@pytest.mark.parametrize("arrived", [{8: (4.5, 0.98)}, {4: (3.0, 0.97)}], ids=["too late", "not at all"])
def test_workers_that_are_late_or_do_not_arrive_leave_it_unsettled(arrived):
    race = raced()
    race.runs.update({(workers, 0): Arrived(*of) for workers, of in arrived.items()})
    assert not _to_accuracy.arrives_sooner(race).settled


def test_a_gradient_waits_and_several_workers_train(monkeypatch):
    slept = []
    monkeypatch.setattr(_to_accuracy, "time", SimpleNamespace(sleep=slept.append))
    task = tasks()[0]
    short = _delays.Task(**{**vars(task), "lengths": {"epochs": 1, "batch_size": 250}})
    race = _to_accuracy.Race(short, task.rates[1], (0,))
    assert race.arrivals(1, "update") and race.arrivals(2, "update")
    assert [len(race.runs[workers, 0].workers) for workers in (1, 2)] == [1, 2]
    assert len(slept) >= sum(run.updates for run in race.runs.values()) and set(slept) == {_to_accuracy.WAIT}


def test_what_a_run_is_warned_of_is_told_to_the_study_alone(recwarn):
    conv = tasks()[0]
    short = _delays.Task(**{**vars(conv), "lengths": {"updates": 4, "batch_size": 16}})
    told = []
    train_task(short, conv.rates[1], 3, "none", 0, told=told)
    assert len(told) == 1 and told[0].startswith("staleness 3 with SGD")
    assert not recwarn.list
    train_task(short, conv.rates[1], 3, "auto", 0, told=told)
    assert len(told) == 1
