"""A folder is where it was when its run began, whatever becomes of the current folder; it is shown as it was given."""

from __future__ import annotations

import json
import os
from pathlib import Path

import problems
import pytest

import hogwild


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another folder than the current one, in which a run of the same name lies already."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    problems.train(update="ordered", updates=10, out="run")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "there"


class Going(hogwild.Callback):
    """Goes to another folder at a moment of the run."""

    def __init__(self, where: Path, at: str) -> None:
        self._where = where
        setattr(self, at, self._go)

    def _go(self, *_):
        os.chdir(self._where)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("at", "kind"), [("on_begin", "processes"), ("on_begin", "threads"), ("on_evaluation", "threads")]
)
def test_a_callback_that_goes_elsewhere_moves_no_file(at, kind, elsewhere, tmp_path):
    before = files(elsewhere / "run")
    moving = {
        "evaluate": problems.accuracy,
        "evaluate_every": 20,
        "checkpoint_every": 20,
        "callbacks": [Going(elsewhere, at)],
    }
    run = problems.train(update="ordered", kind=kind, out="run", **moving)
    assert files(elsewhere / "run") == before
    assert run.out == Path("run") and hogwild.load_run(tmp_path / "here" / "run").digest == run.digest
    assert json.loads((tmp_path / "here" / "run" / "run.json").read_text())["out"] == "run"
    assert (tmp_path / "here" / "run" / "checkpoint.safetensors").exists()
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["run"]


def test_a_loss_that_goes_elsewhere_when_it_is_tried(elsewhere, tmp_path):
    def loss(model, batch):
        os.chdir(elsewhere)
        return problems.cross_entropy(model, batch)

    before = files(elsewhere / "run")
    run = problems.train(update="ordered", loss=loss, out="run", checkpoint_every=20)
    assert files(elsewhere / "run") == before
    assert hogwild.load_run(tmp_path / "here" / "run").digest == run.digest


def test_a_program_that_went_elsewhere_before_it_trains_processes(elsewhere, tmp_path):
    """A fork server, and what it starts, are in the folder that the program was in when it was imported."""
    run = problems.train(update="ordered", kind="processes", out="run", checkpoint_every=20)
    assert (tmp_path / "here" / "run" / "checkpoint.safetensors").exists() and run.updates == 40


def test_a_run_that_is_resumed_by_a_loss_that_goes_elsewhere(elsewhere, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        problems.train(update="ordered", out="run", evaluate=problems.interrupting(2), evaluate_every=10)

    def loss(model, batch):
        os.chdir(elsewhere)
        return problems.cross_entropy(model, batch)

    before = files(elsewhere / "run")
    run = problems.train(update="ordered", loss=loss, out="run", resume="run", evaluate_every=10)
    assert files(elsewhere / "run") == before
    assert hogwild.load_run(tmp_path / "here" / "run").digest == run.digest
    assert run.digest == problems.train(update="ordered").digest


def test_an_empty_folder_is_removed_wherever_the_program_is_then(elsewhere, tmp_path):
    def loss(model, batch):
        os.chdir(elsewhere)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it says nothing
        problems.train(loss=loss, out="a/b")
    assert list((tmp_path / "here").iterdir()) == [] and (elsewhere / "run" / "run.json").exists()
