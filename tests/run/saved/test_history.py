"""A record grows and never shrinks: rows, seconds and samples of a resumed run are those of all its parts."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import problems
import pytest
import torch
from programs import started
from side_by_side import within
from traits import OTHER_BITS, SAME_BITS

import hogwild
from hogwild.testing import Hook, planted

SETTINGS = {"staleness": 1, "micro_batches": 2, "updates": 60, "evaluate_every": 5}


def evaluate(model):
    return {"weight": float(next(model.parameters()).detach().sum())}


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def interrupted(folder, update, at):
    """A run that is interrupted once that version was evaluated."""
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            update=update, out=folder, evaluate=evaluate, callbacks=[problems.interrupting_at(at)], **SETTINGS
        )


@pytest.mark.parametrize("update", [*SAME_BITS, *OTHER_BITS])
def test_the_rows_before_a_resumption_stay_and_seconds_add_up(update, tmp_path):
    interrupted(tmp_path, update, 30)
    before, record = rows(tmp_path), json.loads((tmp_path / "run.json").read_text())
    assert 30 <= before[-1]["update"] < 60
    assert update not in SAME_BITS or [row["update"] for row in before] == list(range(5, 35, 5))
    run = problems.train(update=update, out=tmp_path, resume=tmp_path, evaluate=evaluate, **SETTINGS)
    after, whole = rows(tmp_path), json.loads((tmp_path / "run.json").read_text())
    assert after[: len(before)] == before
    assert sorted({row["update"] for row in after}) == [row["update"] for row in after], "by update, each once"
    assert after[-1]["update"] == 60
    seconds = [row["seconds"] for row in after]
    assert seconds == sorted(seconds)
    assert whole["seconds"] == run.seconds > record["seconds"]
    assert whole["samples_per_second"] > 0
    assert [row["update"] for row in run.evaluations] == [row["update"] for row in after]


def test_a_run_resumed_twice_has_the_rows_of_one_that_was_never_stopped(tmp_path):
    whole = problems.train(update="ordered", evaluate=evaluate, **SETTINGS)
    interrupted(tmp_path, "ordered", 20)
    with pytest.raises(KeyboardInterrupt):
        problems.train(update="ordered", out=tmp_path, resume=tmp_path, evaluate=_after(3), **SETTINGS)
    problems.train(update="ordered", out=tmp_path, resume=tmp_path, evaluate=evaluate, **SETTINGS)
    found = rows(tmp_path)
    assert {row["update"] for row in found} >= {5, 10, 15, 20, 60}, "less the one whose evaluation was interrupted"
    known = {row["update"]: row["weight"] for row in whole.evaluations}
    assert [row["weight"] for row in found] == [known[row["update"]] for row in found]


def _after(calls):
    def stops(model):
        stops.calls += 1
        if stops.calls > calls:
            raise KeyboardInterrupt
        return evaluate(model)

    stops.calls = 0
    return stops


@pytest.mark.parametrize("again", ["same", "stopped"])
def test_resuming_a_finished_run_leaves_its_record_untouched(again, tmp_path):
    stop = {"stop": lambda progress: progress.updates >= 20} if again == "stopped" else {}
    settings = {**SETTINGS, **stop, "update": "ordered", "evaluate": evaluate, "out": tmp_path}
    whole = problems.train(**settings, checkpoint_every=10)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    model = problems.mlp()
    with pytest.warns(UserWarning, match="has ended"):
        run = problems.train(model, **settings, resume=tmp_path)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    assert run.digest == whole.digest == hogwild.digest(model)
    assert run.seconds == whole.seconds and run.evaluations == whole.evaluations
    with pytest.raises(hogwild.ArgumentError, match="lr"):
        problems.train(**settings, resume=tmp_path, optimizer=problems.MOMENTUM)


def test_what_resumes_a_run_without_out_writes_nothing_in_its_folder(tmp_path):
    interrupted(tmp_path, "ordered", 20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    problems.train(update="ordered", resume=tmp_path, evaluate=evaluate, **SETTINGS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


SCRIPT = """
import sys, time
import hogwild
import problems
def loss(model, batch):
    time.sleep(600 if hogwild.worker_info().update >= 17 else 0.02)  # it is killed before its end
    return problems.cross_entropy(model, batch)
def evaluate(model):
    return {"weight": float(next(model.parameters()).detach().sum())}
problems.train(loss=loss, update="ordered", kind="processes", updates=60, out=sys.argv[1], checkpoint_every=10,
               evaluate=evaluate, evaluate_every=5)
"""


def test_a_kill_of_the_program_loses_no_row_and_no_second_before_its_checkpoint(tmp_path):
    out = tmp_path / "run"
    with started(SCRIPT, str(out), errors=tmp_path / "errors.txt") as program:
        written = out / "metrics.jsonl"
        within(120, lambda: written.exists() and '"update": 15' in written.read_text(), "no row after the checkpoint")
        assert program.killed() == -signal.SIGKILL
    run = problems.train(update="ordered", updates=60, out=out, resume=out, evaluate=evaluate, evaluate_every=5)
    assert [row["update"] for row in rows(out)] == list(range(5, 61, 5))
    assert run.seconds > 0.1, "ten updates of 20 ms by two workers are in it"
    seconds = [row["seconds"] for row in rows(out)]
    assert seconds == sorted(seconds)


def test_a_row_after_the_checkpoint_is_not_there_twice(tmp_path):
    """No row is as old as the checkpoint: the file of rows is emptied all the same."""
    settings = {**SETTINGS, "evaluate_every": 10, "checkpoint_every": 7, "evaluate": evaluate, "update": "ordered"}
    out, killed = tmp_path / "run", tmp_path / "killed"

    class Copies(hogwild.Callback):
        """What a kill would leave, between version 10 and what is done once it is judged."""

        def on_evaluation(self, progress):
            if progress.updates == 10:
                shutil.copytree(out, killed)

        def should_stop(self, progress):
            return False

    problems.train(out=out, callbacks=[Copies()], **settings)
    (killed / "metrics.jsonl").write_text('{"update": 10, "seconds": 0.1, "weight": 0.0}\n')
    problems.train(out=killed, resume=killed, updates=60, **{k: v for k, v in settings.items() if k != "updates"})
    assert [row["update"] for row in rows(killed)] == [10, 20, 30, 40, 50, 60]


def test_what_was_logged_and_is_computed_again_leaves_the_file_while_the_run_goes_on(tmp_path):
    """Or a kill of the program would leave it there for good."""
    died, seen = torch.zeros(1, dtype=torch.int64).share_memory_(), []

    def loss(model, batch):
        if (info := hogwild.worker_info()) is not None:
            info.log(there=info.batch)
        return problems.cross_entropy(model, batch)

    def dies(hook, seat):
        if hook is Hook.COMMITTING and seat.ticket == 9 and died[0] == 0:
            within(60, lambda: '"batch": 9,' in written(), "it was never written")
            died[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)

    def written() -> str:
        path = tmp_path / "metrics.jsonl"
        return path.read_text() if path.exists() else ""

    def logged() -> list[int]:
        return [row["batch"] for row in rows(tmp_path) if "batch" in row]

    def evaluate(model):
        seen.append(logged() if died[0] else [])
        return {"weight": 0.0}

    settings = {"kind": "processes", "on_worker_failure": "replace", "evaluate_every": 15, "updates": 40}
    with planted(dies):
        run = problems.train(update="ordered", loss=loss, out=tmp_path, evaluate=evaluate, **settings)
    assert len(run.failures) == 1 and 9 in seen[-1]
    assert all(len(set(batches)) == len(batches) for batches in seen)
