"""A save that has begun is finished or never shown, whatever interrupts it; and one folder has one writer."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time
from contextlib import suppress

import problems
import psutil
import pytest
import torch
from programs import started
from safetensors.torch import load_file
from torch import nn
from warm_pythons import warm_started

import hogwild
from hogwild.run import result
from hogwild.run.saved.directory import RUN_FILES, finish_saving, occupied
from hogwild.run.saved.record import read_record
from hogwild.testing import Fault, Hook, PlantedFault, planted

SETTINGS = {"update": "ordered", "updates": 60}


@pytest.fixture(autouse=True)
def python_hears_ctrl_c():
    """A test program in the background of a shell inherits SIGINT as ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(monkeypatch, times, number=signal.SIGINT):
    """Send that signal to this program when the model's file is about to be written, so many times."""
    save, sent = result.save_file, []

    def saves(*arguments):
        for _ in range(times):
            sent.append(number)
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        save(*arguments)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(result, "save_file", saves)
    return sent


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_the_run_is_saved_comes_after_the_save(times, monkeypatch, tmp_path):
    sent = interrupting(monkeypatch, times)
    model = problems.mlp()
    with pytest.raises(KeyboardInterrupt):
        problems.train(model, **SETTINGS, out=tmp_path)
    assert len(sent) == times
    record = read_record(tmp_path)
    assert (record.updates, record.stopped) == (60, False)
    assert hogwild.digest(load_file(tmp_path / "model.safetensors")) == record.digest == hogwild.digest(model)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_while_an_interrupted_run_is_saved(monkeypatch, tmp_path):
    interrupting(monkeypatch, 2)

    def evaluate(model):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return {}

    with pytest.raises(KeyboardInterrupt):
        problems.train(**SETTINGS, evaluate=evaluate, evaluate_every=20, out=tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["stopped"] == "interrupted" and record["updates"] >= 20
    assert (tmp_path / "checkpoint.safetensors").exists()
    monkeypatch.undo()
    assert problems.train(**SETTINGS, resume=tmp_path).digest == problems.train(**SETTINGS).digest


def test_a_handler_of_the_users_own_hears_the_signal_afterwards(monkeypatch, tmp_path):
    interrupting(monkeypatch, 1, signal.SIGTERM)
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append((tmp_path / "run.json").exists()))
    try:
        run = problems.train(**SETTINGS, out=tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [True, True] and run.updates == 60


def test_an_interrupt_that_the_users_code_swallows_does_not_make_the_run_deaf(tmp_path):
    def evaluate(model):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        except KeyboardInterrupt:
            evaluate.heard += 1
        return {}

    evaluate.heard = 0
    run = problems.train(**SETTINGS, evaluate=evaluate, evaluate_every=20, out=tmp_path)
    assert run.updates == 60 and evaluate.heard == 3


# --- kill -9 in the middle of a save

SCRIPT = """
import os, signal, sys
import problems
from pathlib import Path
from hogwild.run.saved import directory
moves = [0]
replace = Path.replace
def counted(path, target):
    moves[0] += path.parent.name == ".hogwild-saved"
    if moves[0] == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(path, target)
Path.replace = counted
problems.train(update="ordered", updates=60, resume=sys.argv[2], out=sys.argv[2])
"""


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_a_kill_while_files_are_moved_loses_neither_the_old_record_nor_the_new(at, tmp_path):
    def evaluate(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problems.train(**SETTINGS, evaluate=evaluate, evaluate_every=20, out=tmp_path / "run")
    with started(SCRIPT, str(at), str(tmp_path / "run"), errors=tmp_path / "errors.txt") as program:
        assert program.ended() == -signal.SIGKILL, (tmp_path / "errors.txt").read_text()
    run = hogwild.load_run(tmp_path / "run")
    assert (run.updates, run.stopped) == (60, None)
    assert run.digest == hogwild.digest(dict(run.model_state)) == problems.train(**SETTINGS).digest
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {*RUN_FILES, ".hogwild-lock"}


def test_a_save_that_was_not_whole_is_never_shown(tmp_path):
    run = problems.train(**SETTINGS, out=tmp_path)
    half = tmp_path / ".hogwild-saving-x"
    half.mkdir()
    (half / "run.json").write_text("{}")
    finish_saving(tmp_path)
    assert hogwild.load_run(tmp_path).digest == run.digest


LARGE = """
import torch, functools, hogwild
model = torch.nn.Linear(1500, 1500)
hogwild.train(model, torch.randn(64, 1500), lambda m, x: m(x).square().mean(), update="ordered", kind="processes",
              optimizer=functools.partial(torch.optim.SGD, lr=1e-3), updates=4000, batch_size=4, out={out!r},
              checkpoint_every=1)
"""


def is_being_saved(out):
    """True where something lies in a folder that a checkpoint is written in; it may be gone before it is looked at."""
    with suppress(FileNotFoundError):
        return any(any(path.iterdir()) for path in out.iterdir() if path.name.startswith(".hogwild-saving-"))
    return False


def is_stopped(program):
    """Those that it has started included, unless they have ended."""
    found = set()
    for process in [program, *program.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found.add(process.status())
    return found <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}


def test_a_kill_during_a_checkpoint_leaves_nothing_once_the_folder_is_used_again(tmp_path):
    """The whole group is killed while a worker writes; the library's own temporary file lies there then too. It is
    stopped before, and goes on where the write has ended meanwhile."""
    out = tmp_path / "run"
    with warm_started(["-c", LARGE.format(out=str(out))], tmp_path) as process:
        program, deadline, caught = psutil.Process(process.pid), time.monotonic() + 120, False
        while not caught:
            assert time.monotonic() < deadline, (tmp_path / "errors").read_text()
            time.sleep(0.0005)
            if (out / "checkpoint.safetensors").exists() and is_being_saved(out):
                os.killpg(program.pid, signal.SIGSTOP)
                while not is_stopped(program):
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                caught = is_being_saved(out)
                os.killpg(program.pid, signal.SIGKILL if caught else signal.SIGCONT)
        process.join()
    left = {path.name for path in out.iterdir()}
    assert any(name.startswith(".hogwild-saving-") for name in left)
    with occupied(out), pytest.raises(hogwild.RunDirectoryError):
        problems.train(**SETTINGS, resume=out, out=out)
    with pytest.raises(hogwild.HogwildError):  # of another model: refused, but the folder is tidied
        problems.train(**SETTINGS, resume=out, out=out)
    assert {path.name for path in out.iterdir()} == {"config.toml", "origin.json", "checkpoint.safetensors"}


# --- one writer


def test_two_runs_do_not_write_in_one_folder(tmp_path):
    errors, entered, leave = [], threading.Event(), threading.Event()

    def evaluate(model):
        entered.set()
        assert leave.wait(60)
        return {}

    def first():
        problems.train(**SETTINGS, evaluate=evaluate, evaluate_every=30, out=tmp_path / "run")

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert entered.wait(60)
        for arguments in ({}, {"overwrite": True}, {"resume": tmp_path / "run"}):
            with pytest.raises(hogwild.RunDirectoryError, match="another run is being written") as caught:
                problems.train(**SETTINGS, out=tmp_path / "run", **arguments)
            errors.append(str(caught.value))
    finally:
        leave.set()
        thread.join()
    assert not any("\n" in error for error in errors)
    assert hogwild.load_run(tmp_path / "run").updates == 60
    assert not list((tmp_path / "run").glob(".*"))


def test_two_programs_do_not_resume_one_folder(tmp_path):
    code = """
import sys, time
from pathlib import Path
from hogwild.run.saved.directory import occupied
with occupied(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "kept").touch()
    with started(code, str(folder), errors=tmp_path / "errors.txt") as program:
        assert program.output.readline() == "in\n"
        with pytest.raises(hogwild.RunDirectoryError, match="another run is being written"), occupied(folder):
            pass
    with occupied(folder):  # the lock of a program that was killed is nobody's
        pass
    assert [path.name for path in folder.iterdir()] == ["kept"]


# --- modes


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_all_files_of_a_run_have_one_mode(umask, tmp_path):
    before = os.umask(umask)
    try:
        problems.train(kind="processes", **SETTINGS, out=tmp_path, checkpoint_every=20, evaluate=problems.accuracy)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes
    assert len(modes) == 7


# --- what workers log


def log_loss(model, batch):
    value = problems.cross_entropy(model, batch)
    hogwild.worker_info().log(seen=hogwild.worker_info().batch)
    if hogwild.worker_info().update % 7 == 0:
        time.sleep(0.01)
    return value


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("update", ["snapshot", "sync"])
def test_what_workers_log_is_saved_by_update(kind, update, tmp_path):
    run = problems.train(
        update=update, kind=kind, updates=40, loss=log_loss, out=tmp_path, evaluate=problems.accuracy, evaluate_every=10
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if "seen" in row]
    assert [row["batch"] for row in logged] == list(range(len(logged)))
    assert len(logged) == (80 if update == "sync" else 40)
    assert [row["update"] for row in rows] == sorted(row["update"] for row in rows)
    assert logged == [dict(row) for row in run.logged]
    assert len(rows) == len(logged) + len(run.evaluations)
    assert hogwild.load_run(tmp_path).logged == run.logged
    assert hogwild.load_run(tmp_path).evaluations == run.evaluations


@pytest.mark.parametrize("update", ["ordered", "hogwild"])
def test_what_was_logged_before_a_resumption_stays_once(update, tmp_path):
    def evaluate(model):
        raise KeyboardInterrupt

    settings = {"update": update, "updates": 40, "loss": log_loss, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        problems.train(**settings, evaluate=evaluate, evaluate_every=20)
    run = problems.train(**settings, resume=tmp_path)
    assert [row["update"] for row in run.logged] == list(range(40))


@pytest.mark.parametrize("checkpoint_every", [None, 5])
@pytest.mark.parametrize("update", ["ordered", "sync", "hogwild"])
def test_what_was_logged_before_a_failure_stays_once(update, checkpoint_every, tmp_path):
    """Also of its last second, and of a batch that a worker had logged before it failed and another computed again."""

    def evaluate(model):
        raise ZeroDivisionError

    settings = {
        "update": update,
        "updates": 40,
        "loss": log_loss,
        "out": tmp_path,
        "checkpoint_every": checkpoint_every,
    }
    with pytest.raises(ZeroDivisionError), planted(PlantedFault(Fault.RAISE, Hook.COMMITTING, 3)):
        problems.train(**settings, evaluate=evaluate, evaluate_every=20)
    run = problems.train(**settings, resume=tmp_path)
    assert [row["batch"] for row in run.logged] == list(range(80 if update == "sync" else 40))


@pytest.mark.parametrize("update", ["ordered", "hogwild"])
def test_what_came_after_the_state_that_was_saved_is_not_of_it(update, tmp_path):
    """An interrupted run goes on in its folder and is killed: the file of its metrics has grown, its state has not."""
    settings = {"update": update, "updates": 40, "loss": log_loss, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        problems.train(**settings, evaluate=problems.interrupting(2), evaluate_every=10)
    before = hogwild.load_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 40, "seconds": 9.0, "accuracy": 0.5}\n')
        file.write('{"update": 39, "batch": 39, "worker": 0, "loss": 2}\n')
    after = hogwild.load_run(tmp_path)
    assert before.updates < 39 and before.evaluations
    assert (after.metrics, after.evaluations, after.logged) == (before.metrics, before.evaluations, before.logged)


@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_what_was_logged_of_an_update_that_stop_has_dropped_is_dropped(update):
    """Another worker has computed it when the run is told to end."""
    stopping = {"evaluate": problems.accuracy, "evaluate_every": 10, "stop": lambda progress: progress.updates >= 20}
    run = problems.train(update=update, updates=80, loss=log_loss, workers=2, **stopping)
    assert run.updates == 20
    assert {row["update"] for row in run.logged} == set(range(20))


def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path):
    problems.train(**SETTINGS, out=tmp_path, evaluate=problems.accuracy, evaluate_every=20)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, "stopped": "interrupted"}))  # and gone on with since
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 6')
    assert len(hogwild.load_run(tmp_path).evaluations) == 3
    (tmp_path / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(hogwild.RunDirectoryError, match="metrics"):
        hogwild.load_run(tmp_path)


def test_what_no_file_holds_is_refused_before_it_is_trained(tmp_path):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Parameter(torch.ones(8, dtype=torch.complex128))

        def forward(self, x):
            return (x * self.turn).sum(1).abs()

    settings = {"loss": lambda model, batch: model(batch[0]).mean(), "updates": 3}
    with pytest.raises(hogwild.ArgumentError, match="turn is torch.complex128, which safetensors cannot save"):
        problems.train(Complex(), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    assert problems.train(Complex(), **settings).updates == 3
