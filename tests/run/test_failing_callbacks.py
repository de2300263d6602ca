"""A callback that raises ends the run, saved as far as it is; and the end of a run is told to all that have begun."""

from __future__ import annotations

import logging
import os
import signal
import threading

import problems
import pytest
from diaries import SETTINGS, Diary, log_batch, raising

import hogwild
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, planted


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
    saved = (tmp_path / "checkpoint.safetensors").exists() and name != "on_end"
    goes_on = f"the run was saved: hogwild.train(..., resume={str(tmp_path)!r}, out={str(tmp_path)!r}) goes on"
    assert caught.value is error and error.__notes__ == [f"raised by Raising.{name}", *[goes_on] * saved]
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
    told = sorted(row["update"] for (rows,) in diary.of("log") for row in rows)
    assert [update for update in told if update < run.updates] == [row["update"] for row in run.logged]
    assert run.logged[-1]["update"] == run.updates - 1  # what came after it is computed again


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


@pytest.mark.parametrize("name", ["on_begin", "on_end"])
def test_a_callback_may_raise_what_ends_an_iteration(name):
    """As `next(iterator)` without a default does."""
    error = StopIteration("mine")
    with pytest.raises(StopIteration, match="mine") as caught:
        problems.train(**SETTINGS, callbacks=[raising(name, error)])
    assert caught.value is error and error.__notes__ == [f"raised by Raising.{name}"]


@pytest.mark.parametrize("name", ["on_evaluation", "should_stop", "on_progress"])
def test_ctrl_c_in_a_callback_saves_the_run(name, tmp_path):
    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        problems.train(**SETTINGS, out=tmp_path, callbacks=[raising(name, KeyboardInterrupt()), diary])
    ((run, error),) = diary.of("end")
    assert isinstance(error, KeyboardInterrupt) and run.stopped == "interrupted"
    assert problems.train(**SETTINGS, resume=tmp_path).digest == problems.train(**SETTINGS).digest


@pytest.mark.parametrize("error", [SystemExit(85), KeyboardInterrupt()], ids=["exit", "ctrl-c"])
def test_who_interrupts_the_run_again_and_again_takes_no_end_from_the_others(error, tmp_path):
    """It would be asked once more, for a checkpoint is written when the run is interrupted."""
    first, last = Diary(), Diary()
    with pytest.raises(type(error)) as caught:
        problems.train(
            **SETTINGS, out=tmp_path, checkpoint_every=5, callbacks=[first, raising("on_checkpoint", error), last]
        )
    assert caught.value is error
    for diary in (first, last):
        ((run, ended_by),) = diary.of("end")
        assert run.stopped == "interrupted" and ended_by is error
    assert first.of("checkpoint")[-1][0] == last.of("checkpoint")[-1][0] == run.updates


@pytest.mark.parametrize("error", [SystemExit(85), KeyboardInterrupt()], ids=["exit", "ctrl-c"])
def test_what_interrupts_the_end_of_one_is_raised_when_all_have_ended(error, caplog):
    last = Diary()
    callbacks = [raising("on_end", ValueError("first")), raising("on_end", error), last]
    with caplog.at_level(logging.ERROR, "hogwild"), pytest.raises(type(error)) as caught:
        problems.train(**SETTINGS, callbacks=callbacks)
    assert caught.value is error and last.of("end")[0][0].updates == 40
    assert [record.getMessage() for record in caplog.records] == ["ValueError: first; raised by Raising.on_end"]


def test_ctrl_c_at_the_end_of_a_run_that_failed_is_not_lost():
    failed, last = ValueError("mine"), Diary()
    with pytest.raises(KeyboardInterrupt) as caught:
        problems.train(
            **SETTINGS, callbacks=[raising("on_evaluation", failed), raising("on_end", KeyboardInterrupt()), last]
        )
    assert last.of("end") == [[None, failed]] and caught.value.__context__ is failed


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


def test_a_run_that_fails_where_its_metrics_cannot_be_written_leaves_its_checkpoint_all_the_same(tmp_path):
    def evaluate(model):
        metrics = tmp_path / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        metrics.mkdir()
        raise ZeroDivisionError

    settings = {**SETTINGS, "loss": log_batch, "out": tmp_path}
    with pytest.raises(ZeroDivisionError) as caught:
        problems.train(problems.mlp(), **{**settings, "evaluate": evaluate})
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert any("what was logged last could not be saved" in note for note in caught.value.__notes__)
