"""Which runs of a sweep have no folder, as `hogwild runs` says below what it lists."""

from __future__ import annotations

import json

import pytest
import torch
from saved import save_run
from torch import nn

from hogwild.cli import main
from hogwild.experiment import Problem, Training
from hogwild.sweep.missing import missing_runs
from hogwild.sweep.plan import FILE, keep_plan, make_plan

TOY = Training(
    "toy", "?", lambda seed, data: Problem(nn.Linear(1, 1), torch.ones(4, 1), lambda m, b: m(b).sum()), {"epochs": 1}
)


def begun(folder, values):
    folder.mkdir(parents=True)
    keep_plan(folder, make_plan(TOY, "toy", values))
    return folder


@pytest.fixture
def sweep(tmp_path):
    """A sweep of four, of which two runs are there."""
    folder = begun(tmp_path / "runs/one", {"lr": (0.1, 0.2), "seed": (0, 1)})
    for lr in (0.1, 0.2):
        save_run(folder / f"lr{lr}-seed1", lr=lr, seed=1)
    return folder


def test_what_a_sweep_lacks(sweep):
    (found,) = missing_runs([sweep.parent, sweep, sweep / "lr0.1-seed1"])
    assert (found.sweep, found.planned) == (sweep, 4)
    assert [run.folder for run in found.runs] == ["lr0.1-seed0", "lr0.2-seed0"]
    for run in found.runs:
        (sweep / run.folder).mkdir()
    assert missing_runs([sweep]) == []
    (sweep / FILE).write_text("{")
    assert missing_runs([sweep]) == []


@pytest.mark.parametrize("arguments", [["runs"], ["runs/one"], ["runs", "--select", "accuracy"]])
def test_it_is_said_below_the_list(arguments, sweep, capsys, monkeypatch):
    monkeypatch.chdir(sweep.parents[1])
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["runs", *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "missing  2 of the 4 runs of runs/one: lr0.1-seed0, lr0.2-seed0; hogwild sweep --resume runs/one makes them"
    )
    assert main(["runs", *arguments, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["missing"]
    assert told["sweep"] == "runs/one" and told["planned"] == 4
    assert told["runs"][0] == {"folder": "lr0.1-seed0", "settings": {"lr": 0.1, "seed": 0}}


def test_who_lists_one_run_did_not_ask(sweep, capsys):
    assert main(["runs", str(sweep / "lr0.1-seed1")]) == 0
    assert "missing" not in capsys.readouterr().out


def test_a_sweep_of_which_nothing_is_there_says_so_too(tmp_path, capsys, monkeypatch):
    begun(tmp_path / "runs/none", {"seed": (0, 1)})
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "missing  2 of the 2 runs of runs/none" in capsys.readouterr().out
