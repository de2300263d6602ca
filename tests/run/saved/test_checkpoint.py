"""A run stopped at any update goes on from its last checkpoint, to the bits of the run that was never stopped."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path

import problems
import pytest
import torch
from crews import controls_of_runs
from programs import started
from safetensors.torch import load_file, save_file
from side_by_side import within
from torch import nn
from traits import IN_PLACE, OTHER_BITS, SAME_BITS

import hogwild
from hogwild.rules import Hogwild
from hogwild.run.saved import checkpoint
from hogwild.shared.tickets import Control
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, both, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
SETTINGS = {"staleness": 3, "micro_batches": 3, "updates": 60, "optimizer": problems.ADAM, "kind": "processes"}


def train(update, workers=2, **arguments):
    return problems.train(problems.conv_bn(), update=update, workers=workers, **SETTINGS, **arguments)


def interrupt_at(update, out, version, error=KeyboardInterrupt):
    def evaluate(model):
        if evaluate.calls == 1:
            raise error
        evaluate.calls += 1
        return {}

    evaluate.calls = 0
    with pytest.raises(error):
        train(update, out=out, evaluate=evaluate, evaluate_every=version // 2)


@pytest.fixture(scope="module")
def wholes():
    """Runs that nothing has stopped."""
    return {update: train(update) for update in SAME_BITS}


@pytest.mark.parametrize(
    ("update", "error"), [*((update, KeyboardInterrupt) for update in SAME_BITS), ("ordered", SystemExit)]
)
def test_an_interrupted_run_goes_on_with_the_same_bits(update, error, wholes, tmp_path):
    """Whatever ends an evaluation is one to the run."""
    whole = wholes[update]
    interrupt_at(update, tmp_path, 20, error)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["stopped"] == "interrupted"
    assert 20 <= record["updates"] < 60
    resumed = train(update, workers=3, resume=tmp_path, out=tmp_path)
    assert resumed.digest == whole.digest
    assert resumed.updates == len(resumed.journal) == 60
    assert resumed.seals == whole.seals
    assert resumed.journal["loss"].tobytes() == whole.journal["loss"].tobytes()
    assert 0 < resumed.samples < whole.samples


@pytest.mark.parametrize("update", OTHER_BITS)
def test_the_other_rules_go_on_too(update, tmp_path):
    interrupt_at(update, tmp_path, 20)
    done = json.loads((tmp_path / "run.json").read_text())["updates"]
    resumed = train(update, resume=tmp_path)
    assert sorted(resumed.journal["update"]) == list(range(60))
    assert resumed.updates == 60
    assert 20 - 1 <= done < 60, "of the first 20 the other worker may still have been at one"


@pytest.mark.parametrize("every", [1, 7])
def test_from_any_checkpoint(every, tmp_path):
    """Checkpoints made on the way, by the worker that commits, before anyone else can go on."""
    whole = train("ordered", out=tmp_path, checkpoint_every=every)
    (tmp_path / "run.json").unlink()
    resumed = train("ordered", resume=tmp_path)
    assert resumed.digest == whole.digest
    assert resumed.samples == 16 * (60 % every), "the last checkpoint is of update 60 or 56"


SCRIPT = """
import sys
import problems
def loss(model, batch):
    import time
    import hogwild
    time.sleep(60 if hogwild.worker_info().update >= 50 else 0.01)  # it is killed before its end
    return problems.cross_entropy(model, batch)
problems.train(problems.conv_bn(), loss=loss, update=sys.argv[1], workers=2, kind="processes", staleness=3,
               micro_batches=3, updates=60, optimizer=problems.ADAM, out=sys.argv[2], checkpoint_every=5)
"""


@pytest.mark.parametrize("update", SAME_BITS)
def test_after_kill_9_of_the_program(update, wholes, tmp_path):
    out = tmp_path / "run"
    with started(SCRIPT, update, str(out), errors=tmp_path / "errors.txt") as program:
        deadline = time.monotonic() + 60
        while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert program.killed() == -signal.SIGKILL
    assert not (out / "run.json").exists(), "a run that did not end is not taken for a whole one"
    assert train(update, resume=out).digest == wholes[update].digest


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "hostile header":
        path.write_bytes((1 << 62).to_bytes(8, "little") + data[8:])
    else:
        tensors = load_file(path)
        if how == "another shape":
            tensors["optimizer"] = tensors["optimizer"][:-1].clone()
        else:
            del tensors["journal"]
        with_metadata(path, tensors)


def with_metadata(path: Path, tensors) -> None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "seal"}  # as an older one
    save_file(tensors, path, metadata)


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory):
    """The folder of a run; nobody writes to it."""
    folder = tmp_path_factory.mktemp("checkpointed")
    train("ordered", out=folder, checkpoint_every=10)
    return folder


@pytest.mark.parametrize("how", ["truncated", "empty", "hostile header", "another shape", "a tensor is missing"])
def test_a_damaged_checkpoint_is_one_line(how, checkpointed, tmp_path):
    shutil.copytree(checkpointed, tmp_path, dirs_exist_ok=True)
    damaged(tmp_path / "checkpoint.safetensors", how)
    with pytest.raises(hogwild.RunDirectoryError) as caught:
        train("ordered", resume=tmp_path)
    assert "damaged" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("update", SAME_BITS + OTHER_BITS)
def test_a_bit_that_has_changed_is_found_wherever_it_is(update, tmp_path):
    """Without the seal a run went on from a weight that was another one, and said nothing."""
    train(update, out=tmp_path, checkpoint_every=10)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [whole.index(b'\\"next\\": ') + 10, *range(header, len(whole), (len(whole) - header) // 5)]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(hogwild.RunDirectoryError, match="damaged"):
            train(update, resume=tmp_path)
    path.write_bytes(whole)
    assert train(update, resume=tmp_path).updates == 60


def test_an_older_checkpoint_has_no_seal(wholes, checkpointed, tmp_path):
    shutil.copytree(checkpointed, tmp_path, dirs_exist_ok=True)
    with_metadata(path := tmp_path / "checkpoint.safetensors", load_file(path))
    assert train("ordered", resume=tmp_path).digest == wholes["ordered"].digest


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 1}, "seed is 1"), ({"batch_size": 8}, "batch_size is 8"), ({"update": "sync"}, "update")],
)
def test_another_run_is_refused(change, named, checkpointed):
    with pytest.raises(hogwild.ArgumentError, match=named):
        problems.train(problems.conv_bn(), **{"update": "ordered", **SETTINGS, **change}, resume=checkpointed)


def test_another_model_is_refused(checkpointed):
    with pytest.raises(hogwild.RunDirectoryError, match="another model"):
        problems.train(problems.mlp(), update="ordered", **SETTINGS, resume=checkpointed)


def test_no_checkpoint(tmp_path):
    train("ordered", out=tmp_path)
    with pytest.raises(hogwild.RunDirectoryError, match=r"holds no checkpoint\.safetensors"):
        train("ordered", resume=tmp_path)
    with pytest.raises(hogwild.ArgumentError, match="checkpoint_every 5 given without out"):
        train("ordered", checkpoint_every=5)


@pytest.mark.parametrize("update", ["snapshot", "locked", "hogwild"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_ticket_that_was_under_way_is_neither_lost_nor_done_twice(update, workers, tmp_path):
    """Update 8 is slow; the run directory is copied while it is computed, as a kill of the program would leave it."""
    out, copy = tmp_path / "run", tmp_path / "copy"

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 8:
            deadline = time.monotonic() + 60
            while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            shutil.copytree(out, copy, dirs_exist_ok=True)
        return problems.cross_entropy(model, batch)

    settings = {"update": update, "updates": 30}
    whole = problems.train(**settings, loss=loss, out=out, checkpoint_every=10)
    assert sorted(whole.journal["update"]) == list(range(30))
    resumed = problems.train(**settings, workers=workers, resume=copy)
    assert sorted(resumed.journal["update"]) == list(range(30))
    assert resumed.updates == 30
    assert 0 < resumed.samples < whole.samples


class OneAtATime(Hogwild):
    """Does not race, so that the weight counts the updates; nobody waits for the saver."""

    name = "one_at_a_time"
    lock = threading.Lock()

    def _apply(self, *arguments):
        with self.lock:
            super()._apply(*arguments)


def counting(model, batch):
    return model.weight.sum()  # every gradient is one


COUNTS = {"update": OneAtATime(), "optimizer": partial(torch.optim.SGD, lr=1.0), "updates": 14}


class Saving:
    """Where the checkpoint of version 10 is saved: what comes after that version waits until it is let go on."""

    def __init__(self, monkeypatch):
        self.over, self._one, self._controls = threading.Event(), threading.Semaphore(0), controls_of_runs(monkeypatch)
        save = checkpoint.Checkpointer.save

        def saved(*arguments, **named):
            save(*arguments, **named)
            self.over.set()

        monkeypatch.setattr(checkpoint.Checkpointer, "save", saved)

    def loss(self, model, batch):
        """`counting`, of the first ten updates, or while a checkpoint is saved of one that was let go on."""
        if hogwild.worker_info().update >= 10:
            within(60, lambda: self.over.is_set() or self._one.acquire(blocking=False), "no checkpoint is saved")
        return counting(model, batch)

    def another(self):
        """Let another worker apply an update, where one is left."""
        (control,) = self._controls
        if self.over.is_set() or control.commits() == COUNTS["updates"]:
            return
        commits = control.commits()
        self._one.release()
        within(60, lambda: control.commits() > commits, "nobody applies an update")


@pytest.fixture(params=["is asked what is done", "has copied the model"])
def slow_saver(request, monkeypatch):
    """Another worker applies an update each time when the one that saves a checkpoint has come to that."""
    asked, copied, saving = Control.unfinished, checkpoint.as_tensor, Saving(monkeypatch)

    def unfinished(control, settle, but):
        found = asked(control, settle, but)
        if request.param == "is asked what is done":
            saving.another()
        return found

    def as_tensor(memory):
        if request.param == "has copied the model":
            saving.another()
        return copied(memory)

    monkeypatch.setattr(Control, "unfinished", unfinished)
    monkeypatch.setattr(checkpoint, "as_tensor", as_tensor)
    return saving


def test_what_is_applied_while_a_checkpoint_is_made_is_in_it_once(slow_saver, monkeypatch, tmp_path):
    model, again = (nn.Linear(8, 1, bias=False) for _ in range(2))
    nn.init.zeros_(model.weight)
    problems.train(model, **COUNTS, loss=slow_saver.loss, out=tmp_path, checkpoint_every=10)
    monkeypatch.undo()
    run = problems.train(again, **COUNTS, loss=counting, workers=1, resume=tmp_path)
    assert run.updates == len(run.journal) == 14 and run.in_doubt == ()
    assert model.weight.tolist() == again.weight.tolist() == [[-14.0] * 8]


def test_what_was_applied_while_a_checkpoint_was_made_is_in_doubt(slow_saver, monkeypatch, tmp_path):
    """Where others leave no moment for a copy that is whole."""
    monkeypatch.setattr(checkpoint, "_MOST_COPIES", 1)
    problems.train(nn.Linear(8, 1, bias=False), **COUNTS, loss=slow_saver.loss, out=tmp_path, checkpoint_every=10)
    monkeypatch.undo()
    run = problems.train(nn.Linear(8, 1, bias=False), **COUNTS, loss=counting, workers=1, resume=tmp_path)
    assert run.in_doubt and set(run.in_doubt) <= set(range(14))


class SlowToWrite:
    """A worker is in the middle of its write until something is so; no later update is computed before."""

    def __init__(self, so):
        self.so, self.writes = so, threading.Event()

    def __call__(self, hook, seat):
        if hook is Hook.COMPUTING and seat.ticket > 8:
            assert self.writes.wait(60)
        if hook is Hook.WRITING and seat.ticket == 8:
            self.writes.set()
            within(60, self.so)


@pytest.mark.parametrize("update", [name for name in IN_PLACE if name != "locked"])
def test_a_worker_that_was_stopped_in_its_write_is_waited_for(update, monkeypatch, tmp_path):
    """As the system stops one that has used up its share of a core; a copy of a small model takes no millisecond."""
    saving, written_now, looks = Saving(monkeypatch), checkpoint._written_now, []

    def look(state):
        looks.extend(found := written_now(state))
        return found

    def waited_for():
        """A copy that waits for nobody looks at a writer twice."""
        return saving.over.is_set() or looks.count(8) > 3 * checkpoint._MOST_COPIES

    monkeypatch.setattr(checkpoint, "_MOST_WAITED", 60.0)
    monkeypatch.setattr(checkpoint, "_written_now", look)
    with planted(SlowToWrite(waited_for)):
        problems.train(update=update, updates=14, out=tmp_path, checkpoint_every=10)
    run = problems.train(update=update, updates=14, resume=tmp_path)
    assert run.in_doubt == () and sorted(run.journal["update"]) == list(range(14))


@pytest.mark.parametrize("update", [name for name in IN_PLACE if name != "locked"])
def test_what_a_worker_was_writing_when_a_checkpoint_was_saved_is_not_lost(update, tmp_path):
    def train(**named):
        return problems.train(update=update, updates=20, out=tmp_path, checkpoint_every=10, **named)

    fault = PlantedFault(Fault.RAISE, Hook.COMPUTING, 14)
    writes = SlowToWrite((tmp_path / "checkpoint.safetensors").exists)
    with planted(both(writes, fault)), pytest.raises(hogwild.WorkerError):
        train(on_worker_failure="raise")
    run = train(resume=tmp_path)
    assert sorted(run.journal["update"]) == list(range(20))
