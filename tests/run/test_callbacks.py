"""Callbacks: what each is told and when, who may stop a run, and what becomes of one that raises or draws."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading

import numpy as np
import problems
import pytest
import torch
from traits import IN_PLACE, KINDS, NAMES, SAME_BITS

import hogwild
from hogwild.experiment import Problem, Training, settings_of
from hogwild.run.callback import CallbackList
from hogwild.run.training import train_experiment
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, planted

SETTINGS = {"update": "ordered", "updates": 40, "evaluate": problems.accuracy, "evaluate_every": 10}


class Diary(hogwild.Callback):
    """Notes every call."""

    def __init__(self):
        self.notes = []

    def names(self):
        return [name for name, *_ in self.notes]

    def of(self, name):
        return [arguments for one, *arguments in self.notes if one == name]

    def on_begin(self, info):
        self.notes.append(("begin", info))

    def on_progress(self, progress):
        self.notes.append(("progress", progress))

    def on_log(self, rows):
        self.notes.append(("log", rows))

    def on_evaluation(self, progress):
        self.notes.append(("evaluation", progress))

    def on_checkpoint(self, update, path):
        self.notes.append(("checkpoint", update, path))

    def on_failure(self, error):
        self.notes.append(("failure", error))

    def on_end(self, run, error):
        self.notes.append(("end", run, error))


class StopAt(hogwild.Callback):
    def __init__(self, update):
        self.update = update

    def should_stop(self, progress):
        return progress.updates >= self.update


def raising(name, error, raised=None):
    """A callback that raises that error in that method, and sets an event before."""

    def method(self, *arguments):
        if raised is not None:
            raised.set()
        raise error

    return type("Raising", (hogwild.Callback,), {name: method})()


def log_batch(model, batch):
    info = hogwild.worker_info()
    info.log(seen=info.batch)
    return problems.cross_entropy(model, batch)


# --- what is told, and when


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_a_run_is_told_from_its_beginning_to_its_end(update, kind, tmp_path):
    diary, mine = Diary(), os.getpid()
    diary.on_progress = lambda progress: diary.notes.append(("progress", os.getpid()))
    run = problems.train(
        **{**SETTINGS, "update": update, "kind": kind, "out": tmp_path, "loss": log_batch}, callbacks=[diary]
    )
    names = diary.names()
    assert names[0] == "begin" and names[-1] == "end" and names.count("begin") == names.count("end") == 1
    (info,) = diary.of("begin")[0]
    assert info.config == run.config and info.out == tmp_path and (info.start, info.updates) == (0, 40)
    assert info.id == run.origin.run and info.settings == run.settings
    assert diary.of("end") == [[run, None]]
    told = {progress.updates: dict(progress.metrics) for (progress,) in diary.of("evaluation")}
    assert told == {row["update"]: {"accuracy": row["accuracy"]} for row in run.evaluations}
    rows = [row for (rows,) in diary.of("log") for row in rows]
    assert sorted(row["seen"] for row in rows) == [row["seen"] for row in run.logged]
    assert set(map(tuple, diary.of("progress"))) == {(mine,)}, "in the parent"


def test_the_loop_of_ones_own_tells_too():
    diary = Diary()

    def work(worker):
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            x, y = problems.data()
            loss = problems.cross_entropy(replica, (x, y))
            worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())

    run = hogwild.launch(
        work, problems.mlp(), optimizer=problems.SGD, updates=10, kind="threads", callbacks=[diary], update="ordered",
        evaluate=problems.accuracy, evaluate_every=5,
    )  # fmt: skip
    assert [progress.updates for (progress,) in diary.of("evaluation")] == [5, 10]
    assert diary.of("end") == [[run, None]]


def test_an_experiment_has_callbacks_of_its_own_and_those_of_its_caller():
    own, callers = Diary(), Diary()

    def build(seed, data):
        return Problem(problems.mlp(), problems.data(), problems.cross_entropy, problems.accuracy, callbacks=[own])

    training = Training("made", "", build, {"epochs": 1, "kind": "threads"})
    run = train_experiment(training, settings_of(training, {}), callbacks=[callers])
    for diary in (own, callers):
        assert diary.of("end") == [[run, None]]


def test_progress_tells_how_stale_the_latest_updates_were():
    diary = Diary()
    problems.train(**{**SETTINGS, "staleness": 3, "workers": 2}, callbacks=[diary])
    assert diary.of("progress")[-1][0].staleness == 3


def test_a_checkpoint_is_told_with_its_update(tmp_path):
    diary = Diary()
    problems.train(**SETTINGS, out=tmp_path, checkpoint_every=10, callbacks=[diary])
    told = diary.of("checkpoint")
    assert told[-1] == [40, tmp_path / "checkpoint.safetensors"]
    assert {update for update, _ in told} <= {10, 20, 30, 40}
    again = Diary()
    with pytest.warns(UserWarning, match="has ended"):
        problems.train(**SETTINGS, out=tmp_path, resume=tmp_path, callbacks=[again])
    assert again.notes == [], "a run that had ended calls nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_fails_is_told_and_the_run_goes_on(kind, tmp_path):
    diary, failed = Diary(), tmp_path / "failed"

    def loss(model, batch):
        if hogwild.worker_info().update == 7 and not failed.exists():
            failed.touch()
            raise KeyError("once")
        return problems.cross_entropy(model, batch)

    run = problems.train(**{**SETTINGS, "kind": kind, "loss": loss, "recheck": 0}, callbacks=[diary])
    ((error,),) = diary.of("failure")
    assert isinstance(error, hogwild.WorkerError) and error.update == 7 and "once" in str(error)
    assert len(run.failures) == 1 and diary.of("end") == [[run, None]]


def test_a_resumed_run_says_where_it_begins(tmp_path):
    def interrupt(model):
        raise KeyboardInterrupt

    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        problems.train(**{**SETTINGS, "evaluate": interrupt}, out=tmp_path, callbacks=[diary])
    ((run, error),) = diary.of("end")
    assert isinstance(error, KeyboardInterrupt) and run.stopped == "interrupted" and run.out == tmp_path
    after = Diary()
    problems.train(**SETTINGS, out=tmp_path, resume=tmp_path, callbacks=[after])
    ((info,),) = after.of("begin")
    assert info.start == run.updates > 0 and info.id == diary.of("begin")[0][0].id


# --- who may stop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_a_callback_ends_the_run_at_the_version_it_was_asked_about(update, kind):
    run = problems.train(**{**SETTINGS, "update": update, "kind": kind, "updates": 1000}, callbacks=[StopAt(20)])
    assert run.stopped == "stop"
    assert run.updates == 20 if update not in IN_PLACE else 20 <= run.updates < 200


def test_all_who_may_stop_are_asked_each_time_beside_stop():
    asked = {"first": [], "stop": []}

    class First(hogwild.Callback):
        def should_stop(self, progress):
            asked["first"].append(progress.updates)
            return progress.updates == 20

    def stop(progress):
        asked["stop"].append(progress.updates)
        return False

    assert problems.train(**SETTINGS, stop=stop, callbacks=[First()]).updates == 20
    assert asked == {"first": [10, 20], "stop": [10, 20]}


def test_training_waits_for_those_alone_who_may_stop():
    assert not CallbackList([Diary()], progress=print).may_stop
    assert CallbackList([Diary(), StopAt(1)]).may_stop
    assert CallbackList([], stop=lambda progress: False).may_stop


# --- no bit hangs on them


class Drawing(Diary):
    """Draws from every generator of the program, in every method."""

    def _draw(self, *arguments):
        torch.rand(3), np.random.rand(3), random.random()

    on_begin = on_progress = on_log = on_evaluation = on_checkpoint = on_failure = on_end = _draw

    def should_stop(self, progress):
        self._draw()
        return False


@pytest.mark.parametrize("update", SAME_BITS)
def test_what_a_callback_draws_is_no_workers(update, tmp_path):
    settings = {**SETTINGS, "update": update, "loss": log_batch, "kind": "threads", "updates": 200}
    plain = problems.train(**settings)
    model = problems.mlp()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    run = problems.train(model, **settings, out=tmp_path, checkpoint_every=5, callbacks=[Drawing()])
    assert run.digest == plain.digest
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_progress_may_draw_too():
    """Threads share torch's generator."""
    settings = {"update": "ordered", "updates": 400, "kind": "threads"}
    drawn = problems.train(**settings, progress=lambda progress: torch.rand(3))
    assert drawn.digest == problems.train(**settings).digest


# --- what they raise


@pytest.mark.parametrize(
    "name", ["on_begin", "on_progress", "on_log", "on_evaluation", "should_stop", "on_checkpoint", "on_end"]
)
def test_what_a_callback_raises_ends_the_run_and_says_who_it_was(name, tmp_path):
    diary, error, raised = Diary(), ValueError("mine"), threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 30 and name != "on_end":
            assert raised.wait(60)
        return log_batch(model, batch)

    settings = {**SETTINGS, "loss": loss, "out": tmp_path, "checkpoint_every": 5}
    model = problems.mlp()
    with pytest.raises(ValueError, match="mine") as caught:
        problems.train(model, **settings, callbacks=[diary, raising(name, error, raised)])
    assert caught.value is error and error.__notes__ == [f"raised by Raising.{name}"]
    ((run, ended_by),) = diary.of("end")
    if name == "on_end":
        assert run.updates == 40 and ended_by is None and hogwild.load_run(tmp_path).updates == 40
        return
    assert run is None and ended_by is error
    assert not (tmp_path / "run.json").exists(), "as after an evaluate that raises"
    if (tmp_path / "checkpoint.safetensors").exists():
        assert problems.train(**SETTINGS, resume=tmp_path).digest == problems.train(**SETTINGS).digest


def test_the_first_error_is_raised_and_later_ones_are_logged(caplog):
    first, last = ValueError("first"), Diary()
    with caplog.at_level(logging.ERROR, "hogwild"), pytest.raises(ValueError, match="first"):
        problems.train(
            **SETTINGS, callbacks=[raising("on_evaluation", first), raising("on_end", KeyError("late")), last]
        )
    assert [record.getMessage() for record in caplog.records] == ["KeyError: 'late'; raised by Raising.on_end"]
    assert last.of("end") == [[None, first]], "it is told all the same"


def test_what_is_told_last_may_raise_too():
    """What the last worker logged may come when training has ended."""
    diary = Diary()

    class Late(hogwild.Callback):
        def on_log(self, rows):
            if rows[-1]["update"] == 39:
                raise ValueError("at the end")

    with pytest.raises(ValueError, match="at the end") as caught:
        problems.train(**SETTINGS, loss=log_batch, workers=1, callbacks=[diary, Late()])
    assert diary.of("end")[0][1] is caught.value
    seen = [row["update"] for (rows,) in diary.of("log") for row in rows]
    assert seen == list(range(40))


def test_an_interrupted_run_tells_what_was_logged_before_it(tmp_path):
    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            **SETTINGS, loss=log_batch, out=tmp_path, callbacks=[raising("on_evaluation", KeyboardInterrupt()), diary]
        )
    ((run, _),) = diary.of("end")
    assert sorted(row["update"] for (rows,) in diary.of("log") for row in rows) == [row["update"] for row in run.logged]


def test_a_callback_that_could_not_begin_has_no_end():
    ended = []

    class Late(hogwild.Callback):
        def on_begin(self, info):
            raise ValueError("no")

        def on_end(self, run, error):
            ended.append("late")

    with pytest.raises(ValueError, match="no"):
        problems.train(**SETTINGS, callbacks=[Late()])
    assert ended == []


@pytest.mark.parametrize("name", ["on_evaluation", "should_stop", "on_progress"])
def test_ctrl_c_in_a_callback_saves_the_run(name, tmp_path):
    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        problems.train(**SETTINGS, out=tmp_path, callbacks=[raising(name, KeyboardInterrupt()), diary])
    ((run, error),) = diary.of("end")
    assert isinstance(error, KeyboardInterrupt) and run.stopped == "interrupted"
    assert problems.train(**SETTINGS, resume=tmp_path).digest == problems.train(**SETTINGS).digest


def test_ctrl_c_is_heard_while_a_callback_ends(tmp_path):
    """An upload that never ends can be interrupted; the run is saved already."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Uploads(hogwild.Callback):
        def on_end(self, run, error):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("nobody heard it")

    try:
        with pytest.raises(KeyboardInterrupt):
            problems.train(**SETTINGS, out=tmp_path, callbacks=[Uploads()])
    finally:
        signal.signal(signal.SIGINT, before)
    assert hogwild.load_run(tmp_path).stopped is None


def test_a_worker_that_ends_the_run_is_told_at_the_end():
    diary = Diary()

    def loss(model, batch):
        if hogwild.worker_info().update == 7:
            raise KeyError("always")
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.WorkerError) as caught:
        problems.train(**{**SETTINGS, "loss": loss, "max_restarts": 0}, callbacks=[diary])
    assert diary.of("end") == [[None, caught.value]]


def test_a_kill_is_told_once(tmp_path):
    diary = Diary()
    with planted(PlantedFault(Fault.KILL, Hook.PUBLISHING, 10)):
        run = problems.train(**{**SETTINGS, "kind": "processes"}, callbacks=[diary])
    assert len(diary.of("failure")) == len(run.failures) == 1


# --- what is none


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([print], r"callbacks\[0\] is a builtin_function_or_method"),
        ([Diary(), Diary], r"callbacks\[1\] is the class Diary; pass an object of it, Diary\(\)"),
        (Diary(), "callbacks is a Diary"),
        ("Diary", "callbacks is a str, 'Diary'"),
    ],
)
def test_what_is_no_callback_is_refused(given, told):
    with pytest.raises(hogwild.ArgumentError, match=told):
        problems.train(**SETTINGS, callbacks=given)


def test_one_who_is_never_asked_is_refused_by_name():
    class Endless:
        def batch(self, number, generator):
            return problems.data()

    with pytest.raises(hogwild.ArgumentError, match=r"StopAt\.should_stop given, and nothing says when"):
        problems.train(updates=6, data=Endless(), callbacks=[StopAt(3)])


# --- checks


def test_a_check_calls_those_alone_who_may_stop():
    diary, stops = Diary(), StopAt(4)
    verdict = hogwild.check(
        problems.mlp(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, update="ordered",
        kind="threads", updates=20, batch_size=16, evaluate=problems.accuracy, evaluate_every=2, runs=2, controls=False,
        callbacks=[diary, stops],
    )  # fmt: skip
    assert diary.notes == []
    assert [run.updates for run in verdict.runs] == [4, 4] and verdict.identical
