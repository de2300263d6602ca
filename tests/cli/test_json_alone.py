"""With --json standard output has one JSON object, whatever the caller's code prints and wherever it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from traits import KINDS
from warm_pythons import NO_READER, warm_python, warm_started

from hogwild.cli import main

PRINTING = """
import os, sys
import hogwild, torch

print("the file")

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        print("the data")
        return torch.ones(4)

class Tells(hogwild.Callback):
    def on_begin(self, info):
        os.system("echo a program of a callback")

    def on_end(self, run, error):
        print("a callback", end="", file=sys.__stdout__)

    def should_stop(self, progress):
        return False

def loss(model, batch):
    print("the loss")
    os.write(1, b"the loss, past Python\\n")
    return model(batch).square().mean()

def evaluate(model):
    print("the metrics")
    return {"accuracy": 0.5}

def build(width: int = 4) -> hogwild.Problem:
    return hogwild.Problem(torch.nn.Linear(4, width), Rows(), loss, evaluate, callbacks=[Tells()])

hogwild.define_experiment(build, epochs=1, batch_size=8, workers=2, update="ordered")
"""
ALL = ("the file", "the data", "the loss", "the loss, past Python", "the metrics")


@pytest.fixture
def printing(tmp_path: Path) -> Path:
    path = tmp_path / "printing.py"
    path.write_text(PRINTING)
    return path


def both(folder: Path, *arguments: str) -> tuple[str, str]:
    """(standard output, standard error) of a command that does well."""
    done = warm_python(["-m", "hogwild", *arguments], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_callers_code_prints_goes_to_standard_error(kind: str, printing: Path) -> None:
    told, aside = both(printing.parent, "run", "printing.py", "--kind", kind, "--quiet", "--json", "--out", "out")
    assert json.loads(told)["accuracy"] == 0.5
    assert {*ALL, "a program of a callback"} <= {*aside.splitlines()} and "a callback" in aside
    told, aside = both(printing.parent, "replay", "out", "--json")
    assert json.loads(told)["equal"] and "the loss" in aside
    arguments = ["check", "out", "--runs", "2", "--kind", kind, "--json", "--quiet", "--out", "check"]
    told, aside = both(printing.parent, *arguments)
    assert json.loads(told)["passed"] and "the loss, past Python" in aside


def test_without_json_it_stays_where_it_was(printing: Path) -> None:
    command = [sys.executable, "-m", "hogwild", "run", "printing.py", "--quiet", "--out", "out"]
    told = subprocess.run(command, cwd=printing.parent, capture_output=True, text=True, check=True, timeout=120).stdout
    assert {"the loss", "the loss, past Python", "the metrics"} <= {*told.splitlines()}


def test_standard_output_is_itself_again_when_the_command_has_ended(
    printing: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(printing), "--kind", "threads", "--json", "--out", str(printing.parent / "out")]) == 0
    print("after it")
    os.write(1, b"and past Python\n")
    told, aside = capfd.readouterr()
    result, end = told[: told.index("\n}\n") + 3], told[told.index("\n}\n") + 3 :]
    assert json.loads(result)["accuracy"] == 0.5 and sorted(end.splitlines()) == ["after it", "and past Python"]
    assert "the loss, past Python" in aside
    assert main(["run", str(printing), "--json", "--epochs", "-1"]) == 2
    os.write(1, b"after an error\n")
    assert capfd.readouterr().out == "after an error\n"


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["run", "--json", "--help"]])
def test_help_and_version_are_on_standard_output_all_the_same(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert "hogwild" in capfd.readouterr().out


def test_a_reader_of_the_result_that_leaves_is_told_by_the_status_alone(printing: Path) -> None:
    command = ["-m", "hogwild", "run", "printing.py", "--kind", "threads", "--quiet", "--json", "--out", "out"]
    with warm_started(command, printing.parent, NO_READER, "aside") as process:
        process.join(120)
        assert process.exitcode == 141
    assert "Traceback" not in (printing.parent / "aside").read_text()
