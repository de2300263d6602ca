"""A program that trained and then forks, trains inside a worker, or stands in a folder that was removed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import problems
import pytest
from programs import started

import hogwild

FORKS = """
import faulthandler, os, sys, warnings
import problems
import torch
threads, before, then = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(threads)
settings = {"update": "ordered", "updates": 20}
problems.train(torch.nn.Linear(512, 3), data=problems.data(20_000, 512), batch_size=1000, kind=before, **settings)
own = problems.train(**settings, kind=before).digest
if os.fork() == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    warnings.simplefilter("always")
    try:
        again = [problems.train(**settings, kind=then, evaluate=problems.accuracy) for _ in range(2)]
        print([run.digest == own for run in again], torch.get_num_threads(), flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)
os.wait()
print(problems.train(**settings, kind=before).digest == own)
"""


def printed(folder: Path, threads: str, before: str, then: str) -> tuple[list[str], str]:
    """(lines, what stands on standard error) of a program of its own."""
    errors = folder / "errors"
    with started(FORKS, threads, before, then, errors=errors, warm=before == "processes") as program:
        program.ended()
        return program.output.read().splitlines(), errors.read_text()


@pytest.mark.parametrize("then", ["threads", "processes"])
@pytest.mark.parametrize("before", ["threads", "processes"])
def test_a_fork_of_a_program_that_trained_trains_with_the_same_bits(before, then, tmp_path):
    lines, errors = printed(tmp_path, "2", before, then)
    assert lines == ["[True, True] 1", "True"], errors
    assert errors.count("torch computes with one thread") == 1, "the others stayed in the program that was forked"
    assert "Traceback" not in errors


def test_a_fork_of_a_program_with_one_thread_is_not_warned(tmp_path):
    lines, errors = printed(tmp_path, "1", "processes", "processes")
    assert lines == ["[True, True] 1", "True"], errors
    assert "Warning" not in errors


# --- inside a worker


class Nested:
    """A loss that trains something else, once, in a worker at update 3."""

    def __init__(self, outer: str, inner: str) -> None:
        self.outer, self.inner, self.pid, self.done = outer, inner, os.getpid(), False

    def __call__(self, model, batch):
        own = hogwild.worker_info()
        in_worker = problems.in_worker_thread() if self.outer == "threads" else os.getpid() != self.pid
        if in_worker and not self.done and own.update == 3:
            self.done = True
            problems.train(kind=self.inner, updates=4, workers=1, evaluate=self.outside)
            assert hogwild.worker_info() is own and own.update == 3
        return problems.cross_entropy(model, batch)

    @staticmethod
    def outside(model):
        return problems.accuracy(model)


@pytest.mark.parametrize(
    ("outer", "inner"), [("threads", "threads"), ("threads", "processes"), ("processes", "threads")]
)
def test_a_worker_that_trained_something_else_is_that_worker_again(outer, inner):
    expected = problems.train(update="ordered", workers=1, updates=12)
    run = problems.train(
        update="ordered", workers=1, updates=12, kind=outer, loss=Nested(outer, inner), on_worker_failure="raise"
    )
    assert run.digest == expected.digest
    assert hogwild.worker_info() is None


def test_an_evaluation_that_trains_something_else_is_no_worker():
    def evaluate(model):
        problems.train(updates=4)
        assert hogwild.worker_info() is None
        return {}

    problems.train(updates=12, evaluate=evaluate, evaluate_every=6)
    assert hogwild.worker_info() is None


def test_processes_inside_a_worker_process_are_refused_in_one_line():
    with pytest.raises(hogwild.ArgumentError, match=r"daemonic.*kind='threads'") as caught:
        problems.train(workers=1, updates=12, kind="processes", loss=Nested("processes", "processes"))
    assert "\n" not in str(caught.value)


# --- the current folder


@pytest.fixture
def removed(tmp_path, monkeypatch):
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("removed")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_train_says_that_the_current_folder_was_removed(kind):
    with pytest.raises(hogwild.ArgumentError, match="current folder was removed"):
        problems.train(kind=kind)
    with pytest.raises(hogwild.ArgumentError, match="current folder was removed"):
        hogwild.launch(print, problems.mlp(), optimizer=problems.SGD, updates=2, kind=kind)


@pytest.mark.usefixtures("removed")
@pytest.mark.parametrize("command", [["run", "digits"], ["list"], ["check", "digits"]])
def test_the_command_says_that_the_current_folder_was_removed(command):
    """It is started there, and has not imported torch."""
    done = subprocess.run([sys.executable, "-m", "hogwild", *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "current folder was removed" in done.stderr


@pytest.fixture
def removing(tmp_path, monkeypatch):
    """An evaluation that removes the current folder."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def evaluate(model):
        folder.rmdir() if folder.exists() else None
        return {}

    return evaluate


def test_a_folder_that_is_removed_during_a_run_stops_no_run_that_replaces_nobody(removing, tmp_path, monkeypatch):
    run = problems.train(kind="processes", update="ordered", evaluate=removing, evaluate_every=10)
    assert not (tmp_path / "removed").exists()
    assert run.digest == problems_digest(monkeypatch, tmp_path)


def problems_digest(monkeypatch, folder):
    monkeypatch.chdir(folder)
    return problems.train(update="ordered").digest


def test_a_worker_that_cannot_be_started_again_is_named(removing):
    from hogwild.testing import Fault, Hook, PlantedFault, planted

    with (
        planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 20)),
        pytest.raises(hogwild.WorkerError, match=r"worker \d cannot be started.*current folder was removed"),
    ):
        problems.train(
            kind="processes",
            update="ordered",
            evaluate=removing,
            evaluate_every=10,
            stop=lambda progress: False,  # so that version 10 is evaluated before update 20 begins
        )


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_threads_have_ended_when_a_training_has(monkeypatch):
    """Or who forks then has a lock that MKL takes as a thread ends. Python's `join` is too early, before 3.13."""
    monkeypatch.setattr("hogwild.workers.threads._ENDING", 30.0)
    library, key, threads = ctypes.CDLL(None), ctypes.c_uint(), set()
    assert library.pthread_key_create(ctypes.byref(key), library.usleep) == 0, "which a thread calls at its very end"

    def loss(model, batch):
        if problems.in_worker_thread():
            threads.add(threading.get_native_id())
            library.pthread_setspecific(key, ctypes.c_void_p(200_000))
        return problems.cross_entropy(model, batch)

    try:
        problems.train(update="hogwild", loss=loss, kind="threads", workers=2)
        assert threads and threads.isdisjoint(int(one.name) for one in Path("/proc/self/task").iterdir())
    finally:
        library.pthread_key_delete(key)
