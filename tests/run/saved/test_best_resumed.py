"""The best version of a run that was interrupted or killed is that of the run that was never stopped."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import problems
import pytest
from hills import SETTINGS, best_in_checkpoint, check_kept, hill, interrupted
from programs import started
from traits import IN_PLACE, KINDS, SAME_BITS, VERSIONED

import hogwild
from hogwild.run.saved.best import load_best
from hogwild.run.saved.directory import LOCK, RUN_FILES
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, planted


@pytest.mark.parametrize(
    "other", [{"keep_best": "depth"}, {"keep_best": None}, {"evaluate_every": 10}, {"change": {"keep_best": "depth"}}]
)
def test_a_resumed_run_keeps_the_best_of_the_same_metric_at_the_same_versions(other, tmp_path):
    interrupted(tmp_path, "ordered", 20)
    with pytest.raises(hogwild.ArgumentError, match=next(iter(other.get("change", other)))):
        problems.train(update="ordered", out=tmp_path, resume=tmp_path, **{**SETTINGS, **other})


def test_who_wants_the_best_by_another_metric_is_told_to_begin_anew(tmp_path):
    settings = {**SETTINGS, "update": "ordered", "out": tmp_path, "checkpoint_every": 5}
    interrupted(tmp_path, "ordered", 20, keep_best="weight")
    with pytest.raises(hogwild.ArgumentError, match=r"'weight'; .*anew, by overwrite=True \(--overwrite\)"):
        problems.train(**settings, resume=tmp_path)
    assert problems.train(**settings, overwrite=True).best is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_resumed_run_has_the_best_of_the_run_that_was_never_stopped(update, kind, tmp_path):
    whole = problems.train(update=update, **SETTINGS)
    for at in range(5, 61, 10) if kind == "threads" else (25, 45):
        folder = tmp_path / str(at)
        interrupted(folder, update, at, kind=kind)
        run = problems.train(update=update, out=folder, resume=folder, workers=1, **SETTINGS)
        assert (run.best, run.best.digest) == (whole.best, whole.best.digest)
        check_kept(run)
        assert hogwild.load_run(folder).best.digest == whole.best.digest


@pytest.mark.parametrize("update", [*VERSIONED, *IN_PLACE])
def test_what_was_best_after_the_checkpoint_is_forgotten(update, tmp_path):
    """A copy of the folder, as a kill would leave it, whose best version came after its checkpoint."""
    checkpoint, out, killed = 10, tmp_path / "out", tmp_path / "killed"

    class Kill(hogwild.Callback):
        def on_evaluation(self, progress):
            kept = load_best(out)
            if kept is not None and kept.update > checkpoint + 5:
                shutil.copytree(out, killed, ignore=shutil.ignore_patterns(LOCK))
                raise KeyError("no more is needed")

    settings = {**SETTINGS, "checkpoint_every": checkpoint, "updates": 60}
    with pytest.raises(KeyError):
        problems.train(update=update, out=out, callbacks=[Kill()], **settings, workers=1)
    kept = load_best(killed)
    assert kept is not None and kept.update > checkpoint
    at = best_in_checkpoint(killed)
    assert at["update"] < kept.update, "the checkpoint knows the best up to itself"

    def low(model):
        return {**hill(model), "height": -1e9}

    class Look(hogwild.Callback):
        def on_begin(self, info):
            self.found = load_best(killed)

    look = Look()
    again = {**settings, "evaluate": low, "callbacks": [look]}
    run = problems.train(update=update, out=killed, resume=killed, **again)
    assert look.found == run.best, "from the beginning: the next checkpoint takes it from there"
    assert (run.best.update, run.best.value) == (at["update"], at["value"])
    assert run.best == load_best(killed)


def test_the_best_of_an_interrupted_run_is_no_version_that_nobody_published(tmp_path):
    """Ctrl-C once version 40 is evaluated, which is the best, and before anybody may build on it."""

    class CtrlC(hogwild.Callback):
        def on_evaluation(self, progress):
            if progress.updates == 40:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problems.train(update="ordered", out=tmp_path, callbacks=[CtrlC()], **SETTINGS)
    run = hogwild.load_run(tmp_path)
    assert run.updates < 40 and run.best.update == 35
    assert best_in_checkpoint(tmp_path)["update"] == load_best(tmp_path).update == 35
    whole = problems.train(update="ordered", **SETTINGS)
    assert problems.train(update="ordered", out=tmp_path, resume=tmp_path, **SETTINGS).best == whole.best


def test_a_run_that_goes_on_in_another_folder_takes_its_best_along(tmp_path):
    interrupted(tmp_path / "a", "ordered", 45)
    run = problems.train(update="ordered", out=tmp_path / "b", resume=tmp_path / "a", **SETTINGS)
    check_kept(run)
    assert hogwild.load_run(tmp_path / "b").best.digest == run.best.digest


SCRIPT = """
import sys, time
sys.path[:0] = [{tests!r}]
import hogwild
import problems
from pathlib import Path
from hills import SETTINGS

def loss(model, batch):
    time.sleep(60 if hogwild.worker_info().update == SETTINGS["updates"] - 1 else 0.01)  # it is killed before its end
    return problems.cross_entropy(model, batch)

update, out = sys.argv[1], Path(sys.argv[2])
resume = out if (out / "checkpoint.safetensors").exists() else None
problems.train(loss=loss, update=update, kind="processes", out=out, checkpoint_every=13, resume=resume, **SETTINGS)
"""
WHERE = {"tests": str(Path(problems.__file__).parent)}


@pytest.mark.parametrize("update", SAME_BITS)
def test_kills_of_the_program_change_no_bit_of_the_best(update, tmp_path):
    whole, out = problems.train(update=update, **SETTINGS), tmp_path / "run"
    for _ in range(3):
        with started(SCRIPT.format(**WHERE), update, str(out), errors=tmp_path / "errors.txt") as program:
            deadline, old = time.monotonic() + 20, stamp(out)
            while program.process.is_alive() and stamp(out) == old and time.monotonic() < deadline:
                time.sleep(0.002)
            assert program.killed() == -signal.SIGKILL, (tmp_path / "errors.txt").read_text()
    run = problems.train(update=update, out=out, resume=out, **SETTINGS)
    assert (run.best, run.best.digest, run.digest) == (whole.best, whole.best.digest, whole.digest)
    assert {path.name for path in out.iterdir()} <= set(RUN_FILES)


def stamp(folder):
    path = folder / "checkpoint.safetensors"
    return path.stat().st_mtime_ns if path.exists() else None


def test_a_kill_while_the_best_version_is_written_leaves_the_one_before(tmp_path):
    """In the middle of the library's write: the file in its place is whole, and of an earlier version."""
    code = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
import problems
from hogwild.run.saved import best
from hills import SETTINGS
save, saves = best.save_file, []
def half(tensors, path, metadata):
    save(tensors, path, metadata)
    saves.append(path)
    if len(saves) == 3:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
best.save_file = half
problems.train(update="ordered", out={out!r}, checkpoint_every=5, **SETTINGS)
"""
    out, errors = tmp_path / "run", tmp_path / "errors.txt"
    with started(code.format(**WHERE, out=str(out)), errors=errors) as program:
        assert program.ended() == -signal.SIGKILL, errors.read_text()
    kept = load_best(out)
    assert kept is not None and kept.update == 10
    run = problems.train(update="ordered", out=out, resume=out, **SETTINGS)
    assert run.best.digest == problems.train(update="ordered", **SETTINGS).best.digest


def test_a_worker_that_dies_between_showing_and_publishing_leaves_no_best_of_nothing():
    """Under `snapshot` another worker makes that version of another update, and it is evaluated again."""
    with planted(PlantedFault(Fault.KILL, Hook.PUBLISHING, 10)):
        run = problems.train(update="snapshot", kind="processes", **{**SETTINGS, "evaluate_every": 1})
    check_kept(run)
