"""A run that did not end says why: it trains, it failed, it was interrupted, or it was killed."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import started
from saved import save_run, seem_killed

import hogwild
from hogwild.run.result import INTERRUPTED
from hogwild.run.saved.directory import FAILURE, LOCK, RUN_FILES, occupied
from hogwild.run.saved.found import DONE, FAILED, KILLED, RUNNING, UNFINISHED, FoundRun, read_found
from hogwild.run.saved.writer import writer_named


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def failing(at: int, error: BaseException) -> Any:
    """An evaluate that raises the n-th time."""
    calls = 0

    def evaluate(model: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error
        return {"accuracy": calls / 10}

    return evaluate


def test_it_runs_as_long_as_its_process_is_at_work(out: Path) -> None:
    seen: list[FoundRun] = []

    def evaluate(model: Any) -> dict[str, float]:
        seen.append(read_found(out))
        return {"accuracy": 0.5}

    save_run(out, evaluate=evaluate, evaluate_every=10, checkpoint_every=5)
    assert [(one.status, one.why, one.go_on) for one in seen] == [(RUNNING, f"process {os.getpid()} trains it", "")] * 2
    assert seen[1].metrics == {"accuracy": 0.5} and read_found(out).status == DONE


def test_what_it_failed_by_is_told_until_it_is_resumed(out: Path) -> None:
    settings: dict[str, Any] = {"evaluate_every": 5, "checkpoint_every": 5}
    with pytest.raises(KeyError):
        save_run(out, evaluate=failing(3, KeyError("no such\nlabel")), **settings)
    found = read_found(out)
    assert found.status == FAILED and found.metrics == {"accuracy": 0.2} and not found.whole
    assert found.why == r"KeyError: 'no such\nlabel' (raised by evaluate=, which was given version 15)"
    assert found.go_on == f"hogwild.train(..., resume={str(out)!r}, out={str(out)!r})"
    with pytest.raises(hogwild.RunDirectoryError, match=r"run holds no run\.json: its run failed \(KeyError: "):
        hogwild.load_run(out)
    save_run(out, resume=out, **settings)
    assert read_found(out).status == DONE and {path.name for path in out.iterdir()} <= set(RUN_FILES) - {FAILURE}


def test_a_worker_that_fails_is_told_without_its_traceback(out: Path) -> None:
    def loss(model: Any, batch: Any) -> Any:
        if hogwild.worker_info().batch == 3:
            raise ValueError("a bad batch")
        return model(batch[0]).sum()

    with pytest.raises(hogwild.WorkerError):
        save_run(out, own_loss=loss, on_worker_failure="raise")
    found = read_found(out)
    assert found.status == FAILED and found.go_on == f"hogwild.train(..., resume={str(out)!r}, out={str(out)!r})"
    assert found.why.startswith("WorkerError: worker ")
    assert found.why.endswith("raised ValueError at update 3 (batch 3): a bad batch")


def test_an_interruption_is_no_failure_and_a_failure_after_it_is_one(out: Path) -> None:
    settings: dict[str, Any] = {"evaluate_every": 5, "checkpoint_every": 5}
    with pytest.raises(KeyboardInterrupt):
        save_run(out, evaluate=failing(2, KeyboardInterrupt()), **settings)
    found = read_found(out)
    assert found.status == INTERRUPTED and found.go_on == f"hogwild.train(..., resume={str(out)!r}, out={str(out)!r})"
    with pytest.raises(KeyError):
        save_run(out, evaluate=failing(1, KeyError("x")), resume=out, **settings)
    assert read_found(out).status == FAILED


KILLED_PROGRAM = """
import sys
import time
from pathlib import Path
from saved import save_run

def evaluate(model):
    print("evaluated", flush=True)
    time.sleep(600)

save_run(Path(sys.argv[1]), evaluate=evaluate, evaluate_every=10)
"""


def test_a_program_that_was_killed_leaves_a_run_that_was_killed(out: Path, tmp_path: Path) -> None:
    with started(KILLED_PROGRAM, str(out), errors=tmp_path / "errors") as program:
        assert program.output.readline() == "evaluated\n", (tmp_path / "errors").read_text()
        assert read_found(out).status == RUNNING
        program.killed()
        found = read_found(out)
    assert (found.status, found.why, found.go_on) == (KILLED, "", "")


def test_it_is_not_taken_for_a_later_process_of_that_number_or_on_another_machine(out: Path) -> None:
    save_run(out)
    (out / "run.json").unlink()
    with occupied(out):
        assert read_found(out).status == RUNNING
        signed = json.loads((out / LOCK).read_text())
    assert signed["host"] == platform.node() and read_found(out).status == KILLED
    (out / LOCK).write_text(json.dumps({**signed, "born": None, "began": signed["began"] - 60}))
    assert read_found(out).status == KILLED
    if signed["born"]:
        (out / LOCK).write_text(json.dumps({**signed, "born": "another boot 7"}))
        assert read_found(out).status == KILLED
    (out / LOCK).write_text(json.dumps({**signed, "host": "elsewhere"}))
    found = read_found(out)
    assert (found.status, found.why) == (UNFINISHED, f"process {os.getpid()} on elsewhere trains it, or was killed")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="other systems keep when a process began")
def test_it_runs_though_the_clock_is_set_meanwhile(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_run(out)
    (out / "run.json").unlink()
    began = psutil.Process().create_time()
    with occupied(out):
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: began + 3600)
        assert read_found(out).status == RUNNING


def test_a_run_that_was_killed_can_be_gone_on_with(out: Path) -> None:
    whole = save_run(out, checkpoint_every=5)
    seem_killed(out)
    assert read_found(out).status == KILLED and read_found(out).go_on
    assert save_run(out, checkpoint_every=5, resume=out).digest == whole.digest
    assert read_found(out).status == DONE and not (out / LOCK).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kind": 1}', '{"pid": "x", "host": 1, "began": {}}', "[" * 9999])
def test_strange_files_are_not_believed(text: str, out: Path, tmp_path: Path) -> None:
    save_run(out)
    (out / "run.json").unlink()
    (out / LOCK).write_text(text)
    assert writer_named(out / LOCK) is None and read_found(out).status == KILLED
    (out / FAILURE).write_text(text)
    assert (read_found(out).status, read_found(out).why) == (FAILED, "failure.json in it cannot be read")
    shutil.copytree(out, tmp_path / "other")
    (tmp_path / "other" / LOCK).unlink()
    (tmp_path / "other" / LOCK).mkdir()
    assert read_found(tmp_path / "other").status == FAILED
