"""keep_best: the version with the best metric is kept, in memory and on disk, with the same bits whoever trained it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import problems
import pytest
from programs import started
from safetensors.torch import load_file
from traits import IN_PLACE, KINDS, NAMES, SAME_BITS, VERSIONED

import hogwild
from hogwild.run import best
from hogwild.run.best import BestKeeper, load_best
from hogwild.run.directory import RUN_FILES
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, planted

FILE = "best.safetensors"


def hill(model):
    """A height that rises, and falls again before the end; it hangs on the bits of the model alone."""
    norm = sum(float(parameter.detach().double().square().sum()) for parameter in model.parameters())
    return {"height": -abs(norm - PEAK), "depth": abs(norm - PEAK), "weight": norm}


PEAK = 10.3  # the norm that the model passes after two thirds of its way
SETTINGS = {"updates": 60, "evaluate": hill, "evaluate_every": 5, "keep_best": "height"}


def highest(run):
    return max(run.evaluations, key=lambda row: (row["height"], -row["update"]))


def check_kept(run):
    row = highest(run)
    assert (run.best.metric, run.best.update, run.best.value) == ("height", row["update"], row["height"])
    model = problems.mlp()
    model.load_state_dict(run.best.state)
    assert hill(model)["height"] == row["height"], "the state is that of the version that was evaluated"
    assert run.best.digest == hogwild.digest(dict(run.best.state))


def test_the_hill_has_its_top_on_the_way():
    row = highest(problems.train(update="ordered", **SETTINGS))
    assert 5 < row["update"] < 60


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_the_best_version_is_kept(update, kind, saved, tmp_path):
    run = problems.train(update=update, kind=kind, out=tmp_path if saved else None, **SETTINGS)
    check_kept(run)
    if saved:
        assert hogwild.digest(load_file(tmp_path / FILE)) == run.best.digest
        found = hogwild.load_run(tmp_path).best
        assert found == run.best and hogwild.digest(dict(found.state)) == run.best.digest


def test_the_best_version_where_workers_read_predicted_weights(tmp_path):
    """What is kept is what was evaluated, not what workers read."""
    run = problems.train(
        update="ordered", staleness=3, optimizer=problems.MOMENTUM, out=tmp_path, compensation="auto", **SETTINGS
    )
    assert run.compensation
    check_kept(run)


@pytest.mark.parametrize("update", SAME_BITS)
def test_the_same_best_bits_whoever_trains(update):
    found = {
        (run.best.update, run.best.digest)
        for kind in KINDS
        for workers in (1, 2, 3)
        for run in [problems.train(update=update, kind=kind, workers=workers, staleness=2, micro_batches=3, **SETTINGS)]
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("wanted", "lowest"), [("height", False), ("height:max", False), ("height:min", True), ("depth:min", True)]
)
def test_max_or_min(wanted, lowest):
    run = problems.train(update="ordered", **{**SETTINGS, "keep_best": wanted})
    name = wanted.partition(":")[0]
    values = [row[name] for row in run.evaluations]
    assert run.best.value == (min(values) if lowest else max(values))
    assert run.best.metric == name


@pytest.mark.parametrize(
    ("name", "lowest"), [("test_loss", True), ("error", True), ("rmse", True), ("accuracy", False), ("glossy", False)]
)
def test_a_name_that_tells_losses_and_errors(name, lowest):
    keeper = BestKeeper(name, None, "", None)
    for update, value in enumerate((0.5, 0.2, 0.9), start=1):
        keeper.see({"update": update, "seconds": 0.0, name: value}, nothing)
    assert keeper.best.value == (0.2 if lowest else 0.9)


def test_the_first_of_equals_and_never_what_is_no_number():
    keeper = BestKeeper("a", None, "", None)
    for update, value in enumerate((float("nan"), 1.0, 2.0, 2.0, float("nan")), start=1):
        keeper.see({"update": update, "seconds": 0.0, "a": value}, nothing)
    assert keeper.best.update == 3
    keeper = BestKeeper("a", None, "", None)
    keeper.see({"update": 1, "seconds": 0.0, "a": float("nan")}, nothing)
    assert keeper.best is None


def test_a_name_with_a_colon():
    keeper = BestKeeper("val:min", None, "", None)
    for update, value in enumerate((0.5, 0.2, 0.9), start=1):
        keeper.see({"update": update, "seconds": 0.0, "val:min": value}, nothing)
    assert keeper.best.value == 0.9, "there is such a metric, and it is not called val"


def test_a_version_that_is_evaluated_again_counts_as_it_is_seen_last(tmp_path):
    """What was shown first was never published, or still written."""
    keeper = BestKeeper("a", tmp_path, "", None)

    def see(update, value):
        keeper.see({"update": update, "seconds": 0.0, "a": value}, nothing)
        kept = load_best(tmp_path)
        assert kept == keeper.best
        return (kept.update, kept.value) if kept else None

    assert see(5, 9.0) == (5, 9.0)
    assert see(5, float("nan")) is None
    assert see(5, 1.0) == (5, 1.0)
    assert see(10, 3.0) == (10, 3.0)
    assert see(10, 2.0) == (10, 2.0)
    assert see(10, 0.5) == (5, 1.0)
    assert see(15, 0.7) == (5, 1.0)


def test_an_evaluation_in_training_mode_does_not_move_what_is_kept():
    def evaluate(model):
        evaluate.before.append(hogwild.digest(model))
        model.train()
        model(problems.data()[0])
        assert hogwild.digest(model) != evaluate.before[-1], "running averages moved"
        return {"a": float(len(evaluate.before))}

    evaluate.before = []
    run = problems.train(
        problems.conv_bn(), update="ordered", updates=20, evaluate=evaluate, evaluate_every=5, keep_best="a"
    )
    assert run.best.update == 20 and run.best.digest == evaluate.before[-1] == run.digest


@pytest.mark.parametrize("saved", [True, False])
def test_training_waits_for_each_evaluation_where_the_run_is_saved(saved, tmp_path):
    """So that a checkpoint of a later version never lacks one; in memory there is nothing to wait for."""
    passed, reached = threading.Event(), []

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 15:
            passed.set()
        return problems.cross_entropy(model, batch)

    def evaluate(model):
        if not reached:
            reached.append(passed.wait(0.3 if saved else 60))
        return hill(model)

    settings = {**SETTINGS, "evaluate": evaluate, "evaluate_every": 10}
    problems.train(update="ordered", kind="threads", loss=loss, out=tmp_path if saved else None, **settings)
    assert reached == [not saved]


# --- refusals


def test_a_metric_that_there_is_not_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(hogwild.ArgumentError, match=r"keep_best 'accuracy' is no metric.*height, depth, weight"):
        problems.train(update="ordered", **{**SETTINGS, "keep_best": "accuracy"})
    with pytest.raises(hogwild.ArgumentError, match="keep_best 'height:lowest' is no metric"):
        problems.train(update="ordered", **{**SETTINGS, "keep_best": "height:lowest"})


def test_without_evaluate_it_is_refused_before_any_worker_starts():
    with pytest.raises(hogwild.ArgumentError, match="keep_best 'height' given without evaluate"):
        problems.train(updates=10, keep_best="height")


@pytest.mark.parametrize(
    "other", [{"keep_best": "depth"}, {"keep_best": None}, {"evaluate_every": 10}, {"change": {"keep_best": "depth"}}]
)
def test_a_resumed_run_keeps_the_best_of_the_same_metric_at_the_same_versions(other, tmp_path):
    interrupted(tmp_path, "ordered", 20)
    with pytest.raises(hogwild.ArgumentError, match=next(iter(other.get("change", other)))):
        problems.train(update="ordered", out=tmp_path, resume=tmp_path, **{**SETTINGS, **other})


# --- resumed


def interrupted(folder, update, at, **settings):
    """A run that is interrupted in that evaluation."""
    evaluate = problems.interrupting(at // 5, hill)
    with pytest.raises(KeyboardInterrupt):
        problems.train(update=update, out=folder, **{**SETTINGS, "evaluate": evaluate, **settings})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_resumed_run_has_the_best_of_the_run_that_was_never_stopped(update, kind, tmp_path):
    whole = problems.train(update=update, **SETTINGS)
    for at in range(5, 61, 10):
        folder = tmp_path / str(at)
        interrupted(folder, update, at, kind=kind)
        run = problems.train(update=update, out=folder, resume=folder, workers=1, **SETTINGS)
        assert (run.best, run.best.digest) == (whole.best, whole.best.digest)
        check_kept(run)
        assert hogwild.load_run(folder).best.digest == whole.best.digest


@pytest.mark.parametrize("update", [*VERSIONED, *IN_PLACE])
def test_what_was_best_after_the_checkpoint_is_forgotten(update, tmp_path):
    """A copy of the folder, as a kill would leave it, whose best version came after its checkpoint."""
    checkpoint = 10

    class Kill(hogwild.Callback):
        def on_evaluation(self, progress):
            kept = load_best(tmp_path)
            if kept is not None and kept.update > checkpoint + 5:
                raise KeyError("as if killed")

    settings = {**SETTINGS, "checkpoint_every": checkpoint, "updates": 60}
    with pytest.raises(KeyError):
        problems.train(update=update, out=tmp_path, callbacks=[Kill()], **settings, workers=1)
    kept = load_best(tmp_path)
    assert kept is not None and kept.update > checkpoint
    at = best_in_checkpoint(tmp_path)
    assert at["update"] < kept.update, "the checkpoint knows the best up to itself"

    def low(model):
        return {**hill(model), "height": -1e9}

    class Look(hogwild.Callback):
        def on_begin(self, info):
            self.found = load_best(tmp_path)

    look = Look()
    again = {**settings, "evaluate": low, "callbacks": [look]}
    run = problems.train(update=update, out=tmp_path, resume=tmp_path, **again)
    assert look.found == run.best, "from the beginning: the next checkpoint takes it from there"
    assert (run.best.update, run.best.value) == (at["update"], at["value"])
    assert run.best == load_best(tmp_path)


def best_in_checkpoint(folder):
    from safetensors import safe_open

    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        return json.loads(file.metadata().get("best", "null"))


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
sys.path[:0] = [{tests!r}, {here!r}]
import problems
from pathlib import Path
from test_best import SETTINGS

def loss(model, batch):
    time.sleep(0.01)
    return problems.cross_entropy(model, batch)

update, out = sys.argv[1], Path(sys.argv[2])
resume = out if (out / "checkpoint.safetensors").exists() else None
problems.train(loss=loss, update=update, kind="processes", out=out, checkpoint_every=13, resume=resume, **SETTINGS)
"""
WHERE = {"tests": str(Path(problems.__file__).parent), "here": str(Path(__file__).parent)}


@pytest.mark.parametrize("update", SAME_BITS)
def test_kills_of_the_program_change_no_bit_of_the_best(update, tmp_path):
    whole, out = problems.train(update=update, **SETTINGS), tmp_path / "run"
    for _ in range(3):
        with started(SCRIPT.format(**WHERE), update, str(out), errors=tmp_path / "errors.txt") as program:
            deadline, old = time.monotonic() + 60, stamp(out)
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
sys.path[:0] = [{tests!r}, {here!r}]
import problems
from hogwild.run import best
from test_best import SETTINGS
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
    script = code.format(**WHERE, out=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    kept = load_best(tmp_path)
    assert kept is not None and kept.update == 10
    run = problems.train(update="ordered", out=tmp_path, resume=tmp_path, **SETTINGS)
    assert run.best.digest == problems.train(update="ordered", **SETTINGS).best.digest


def test_a_worker_that_dies_between_showing_and_publishing_leaves_no_best_of_nothing():
    """Under `snapshot` another worker makes that version of another update, and it is evaluated again."""
    with planted(PlantedFault(Fault.KILL, Hook.PUBLISHING, 10)):
        run = problems.train(update="snapshot", kind="processes", **{**SETTINGS, "evaluate_every": 1})
    check_kept(run)


def test_no_file_that_cannot_be_written_goes_unsaid(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(best, "save_file", full)
    with pytest.raises(hogwild.RunDirectoryError, match="no best.safetensors.*No space left"):
        problems.train(update="ordered", out=tmp_path, **SETTINGS)


# --- on disk


def test_what_is_saved_says_so(tmp_path):
    run = problems.train(update="ordered", out=tmp_path, **SETTINGS)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["best"] == {
        "metric": "height",
        "update": run.best.update,
        "value": run.best.value,
        "digest": run.best.digest,
    }
    assert f"best height {run.best.value:.4g} at update {run.best.update}" in str(run)
    assert 'keep_best = "height"' in (tmp_path / "config.toml").read_text()


def test_a_changed_byte_is_found_and_a_file_of_another_run_is_refused(tmp_path):
    for name in "ab":
        problems.train(update="ordered", out=tmp_path / name, **SETTINGS)
    path = tmp_path / "a" / FILE
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is not the file that was saved"):
        hogwild.load_run(tmp_path / "a")
    path.write_bytes((tmp_path / "b" / FILE).read_bytes())
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is of another run"):
        hogwild.load_run(tmp_path / "a")
    path.write_bytes(b"{}")
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is damaged"):
        hogwild.load_run(tmp_path / "a")
    path.unlink()
    with pytest.raises(hogwild.RunDirectoryError, match=r"holds no best\.safetensors"):
        hogwild.load_run(tmp_path / "a")


def test_a_run_in_memory_is_saved_with_its_best_and_replaced_without(tmp_path):
    run = problems.train(update="ordered", **SETTINGS)
    run.save(tmp_path)
    assert hogwild.load_run(tmp_path).best == run.best
    problems.train(update="ordered", updates=20).save(tmp_path, overwrite=True)
    assert not (tmp_path / FILE).exists() and hogwild.load_run(tmp_path).best is None


def test_a_replay_keeps_nothing_and_a_check_is_not_asked_to(tmp_path):
    problems.train(update="ordered", out=tmp_path, **SETTINGS)
    assert hogwild.replay(
        tmp_path,
        model=problems.mlp(),
        data=problems.data(),
        loss=problems.cross_entropy,
        optimizer=problems.SGD,
    ).equal
    with pytest.raises(hogwild.ArgumentError, match="'keep_best'; it repeats a training and saves nothing"):
        hogwild.check(
            problems.mlp(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, updates=20,
            keep_best="accuracy", evaluate=problems.accuracy,
        )  # fmt: skip


def test_all_files_have_one_mode(tmp_path):
    before = os.umask(0o027)
    try:
        problems.train(update="ordered", out=tmp_path, checkpoint_every=20, **SETTINGS)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}[FILE] == 0o640


def test_the_best_by_a_metric_of_the_moving_average_is_the_average():
    """The score grows with every look, so the last one is the best, of the model and of its average."""
    looks = iter(range(1000))

    def evaluate(model):
        return {"score": float(next(looks))}

    arguments = {"update": "ordered", "updates": 20, "evaluate": evaluate, "evaluate_every": 10, "ema": 0.9}
    of_average = problems.train(keep_best="ema_score", **arguments)
    of_model = problems.train(keep_best="score", **arguments)
    assert of_average.best.digest == of_average.ema_digest != of_average.digest
    assert of_model.best.digest == of_model.digest == of_average.digest


def nothing(metric):
    """The state of a version that nobody looks at."""
    return {}
