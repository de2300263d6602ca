"""Callbacks: what each is told and when, who may stop a run, and that no bit hangs on them."""

from __future__ import annotations

import os
import random

import numpy as np
import problems
import pytest
import torch
from diaries import SETTINGS, Diary, StopAt, log_batch
from traits import IN_PLACE, KINDS, NAMES, SAME_BITS

import hogwild
from hogwild.experiment import Problem, Training, settings_of
from hogwild.run.callback import CallbackList
from hogwild.run.training import train_experiment

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


def test_what_a_callback_makes_of_the_settings_it_is_given_is_its_own(tmp_path):
    """A tracker that takes flat values only, say."""

    class Flat(hogwild.Callback):
        def on_begin(self, info):
            info.settings["optimizer"].clear()
            info.settings.pop("model")
            info.settings["host"] = "mine"

    plain = problems.train(**SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        problems.train(**{**SETTINGS, "evaluate": problems.interrupting(2)}, out=tmp_path, callbacks=[Flat()])
    recorded = hogwild.load_run(tmp_path).settings
    assert recorded["optimizer"] and "model" in recorded and "host" not in recorded
    run = problems.train(**SETTINGS, out=tmp_path, resume=tmp_path, callbacks=[Flat()])
    assert run.settings == hogwild.load_run(tmp_path).settings == recorded and run.digest == plain.digest


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


# --- what is none


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([print], r"callbacks\[0\] is a builtin_function_or_method"),
        ([Diary(), Diary], r"callbacks\[1\] is the class Diary; pass an object of it, Diary\(\)"),
        ([hogwild.EarlyStopping], r"is the class EarlyStopping; pass an object of it, EarlyStopping\(metric\)"),
        (Diary(), "callbacks is a Diary; pass a list"),
        ("Diary", "callbacks is a str, 'Diary'"),
    ],
)
def test_what_is_no_callback_is_refused(given, told):
    with pytest.raises(hogwild.ArgumentError, match=told):
        problems.train(**SETTINGS, callbacks=given)


class Misspelt(Diary):
    def should_sotp(self, progress):
        return True


class Helped(Diary):
    """Its own name is near that of a method which it has; another begins with an underscore."""

    def on_evaluations(self):
        return self.of("evaluation")

    def _should_stop(self):
        return True


def test_a_method_that_nobody_calls_is_refused_with_the_one_that_was_meant():
    with pytest.raises(hogwild.ArgumentError, match=r"Misspelt\.should_sotp is never called; did you mean should_stop"):
        problems.train(**SETTINGS, callbacks=[Misspelt()])
    assert CallbackList([Helped()]).that_have("on_evaluation")


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
