"""The folders of runs on the command line: --out, --overwrite, --resume, and those that a Python program made."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
from torch import nn

import hogwild
from hogwild.cli import main
from hogwild.config import DECIDE_BITS

SHORT = ["--kind", "threads", "--updates", "20", "--quiet", "--update", "ordered"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("folder", ["there", "."])
def test_out_is_a_new_folder_or_an_empty_one(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    Path(folder, "mine.txt").touch()
    assert "--overwrite" in refused(capsys, "run", "digits", *SHORT, "--out", folder)
    assert [path.name for path in Path("there").iterdir()] == (["mine.txt"] if folder == "there" else [])
    assert main(["run", "digits", *SHORT, "--out", folder, "--overwrite"]) == 0
    assert Path(folder, "run.json").exists() and Path(folder, "mine.txt").exists()


def test_a_resumed_run_takes_no_other_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", *SHORT, "--out", "here", "--checkpoint-every", "10"]) == 0
    before = content(Path("here"))
    for flag, value in (("--lr", "0.3"), ("--optimizer", "adam"), ("--seed", "1")):
        err = refused(capsys, "run", "--resume", "here", flag, value, "--quiet")
        assert f"{flag[2:]} is " in err and "a resumed run needs the same" in err
    assert content(Path("here")) == before
    assert {"lr", "optimizer", "data", "seed"} <= set(DECIDE_BITS)
    assert tomllib.loads(Path("here/config.toml").read_text())["lr"] == 0.5


@pytest.mark.filterwarnings("default:the run in:UserWarning")
def test_a_run_that_has_ended_is_given_back_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", *SHORT, "--out", "here", "--checkpoint-every", "10", "--json"]) == 0
    first, before = json.loads(capsys.readouterr().out), content(Path("here"))
    assert main(["run", "--resume", "here", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    again = json.loads(out)
    assert "has ended after 20 updates" in err
    assert again == first
    assert content(Path("here")) == before


@pytest.mark.parametrize("name", ["run", "digits"])
def test_a_run_from_python_says_what_to_call_instead(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that has the name of an experiment."""
    torch.manual_seed(0)
    hogwild.train(
        nn.Linear(4, 4),
        torch.ones(8, 4),
        lambda model, batch: model(batch).square().mean(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        update="ordered",
        kind="threads",
        batch_size=4,
        epochs=2,
        out="mine",
        name=name,
        checkpoint_every=2,
    )
    assert "hogwild.replay('mine', model=" in refused(capsys, "replay", "mine")
    for wanted in ("mine/config.toml", "./mine"):
        assert "hogwild.train(model, data, loss, optimizer=...)" in refused(capsys, "run", wanted)
    assert "resume='mine', out='mine'" in refused(capsys, "run", "--resume", "mine")
    Path("mine/origin.json").unlink()
    told = refused(capsys, "run", "--resume", "mine")
    assert "another run" in told or "hogwild.train" in told
