"""With which status `hogwild run` ends where something went wrong, and what it says."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from offered import DEFAULTS, Offer, linear
from torch import nn

from hogwild.cli import main
from hogwild.cli.status import as_typed, status_of
from hogwild.errors import WorkerError
from hogwild.experiment import Problem, Training


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_loss_that_raises_in_a_worker_is_3_with_its_traceback(
    offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def breaks(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        if len(calls) > 2:
            raise KeyError("the third call")
        loss: torch.Tensor = model(batch).square().mean()
        return loss

    def build(seed: int, data: Path | None) -> Problem:
        return Problem(nn.Linear(2, 1), torch.ones(8, 2), breaks)

    offer(Training("breaks", "?", build, DEFAULTS))
    assert main(["run", "breaks", "--json"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "KeyError" in err and "the third call" in err and "in breaks" in err and "Traceback" in err


def test_a_loss_that_becomes_nan_is_3(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    offer(Training("wild", "?", linear, {**DEFAULTS, "updates": 2000}))
    assert main(["run", "wild", "--lr", "1e6"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hogwild: ") and "update" in err
    assert "--on-nonfinite skip" in err and "on_nonfinite=" not in err, "as one types it here"


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda model, batch: model(batch).square(), "scalar"),
        (lambda model, batch: model(batch).sum() * float("nan"), "nan"),
    ],
)
def test_a_loss_that_cannot_work_is_2_in_one_line(
    loss: Any, named: str, offer: Offer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    offer(Training("odd", "?", lambda seed, data: Problem(nn.Linear(2, 1), torch.ones(8, 2), loss), DEFAULTS))
    assert main(["run", "odd"]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_draws_that_threads_cannot_reproduce_are_2(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    def build(seed: int, data: Path | None) -> Problem:
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.Linear(8, 1))
        return Problem(model, torch.ones(8, 2), lambda model, batch: model(batch).square().mean())

    offer(Training("drops", "?", build, DEFAULTS))
    assert main(["run", "drops", "--update", "ordered"]) == 2
    err = capsys.readouterr().err
    assert "Dropout" in err and "processes" in err and err.count("\n") == 1
    assert main(["run", "drops", "--quiet"]) == 0


def test_an_error_that_nobody_foresaw_is_3_with_a_traceback(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    def build(seed: int, data: Path | None) -> Problem:
        raise ZeroDivisionError("in build")

    offer(Training("broken", "?", build, DEFAULTS))
    assert main(["run", "broken"]) == 3
    assert "ZeroDivisionError: in build" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:mind the step")
def test_a_warning_is_one_line(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    def build(seed: int, data: Path | None) -> Problem:
        warnings.warn("mind the step", stacklevel=1)
        return linear(seed, data)

    offer(Training("warns", "?", build, DEFAULTS))
    assert main(["run", "warns", "--quiet"]) == 0
    assert capsys.readouterr().err == "hogwild: warning: mind the step\n"


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("use kind='threads', please", "use --kind threads, please"),
        ("use update='a', 'b' or 'c'; or not", "use --update a, b or c; or not"),
        ("--set: lr=0.03 is an example", "--set: lr=0.03 is an example"),
        ("config='x' and my_kind='z' stay", "config='x' and my_kind='z' stay"),
        (
            "lr is 1, and it had 2; it needs the same, and change={'lr': 1} beside it (--set lr=1)",
            "lr is 1, and it had 2; it needs the same; --set lr=1 in place of --lr changes it from there on",
        ),
        ("put that back, and change it by change={'lr': 1} (--set lr=1)", "put that back, and change it by --set lr=1"),
        ("a worker raised\n  kind='threads'", "a worker raised\n  kind='threads'"),
    ],
)
def test_settings_are_named_as_they_are_typed(message: str, typed: str) -> None:
    assert as_typed(message) == typed


def test_what_is_logged_looks_like_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    def tell() -> int:
        logging.getLogger("hogwild").warning("the loss %s; compensation='auto' may help", "grows")
        return 0

    assert status_of(tell) == 0
    assert capsys.readouterr().err == "hogwild: warning: the loss grows; --compensation auto may help\n"


def test_letters_that_a_locale_has_not_are_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    for errors in ("strict", "surrogateescape"):  # the latter in the locale C
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), "ascii", errors=errors))
        assert status_of(lambda: print("1 · 2") or 0) == 0
        assert written.getvalue() == b"1 ? 2\n"


@pytest.mark.parametrize(("told", "left"), [("0", None), ("-1", None), ("wide", None), ("", None), ("100", "100")])
def test_a_terminal_without_a_width_has_the_usual_one(
    told: str, left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", told)
    assert status_of(lambda: 0) == 0
    assert os.environ.get("COLUMNS") == left


def test_a_note_of_a_failed_training_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    def failed() -> int:
        error = WorkerError("worker 0 raised")
        error.add_note("batch 2 has one sample")
        raise error

    assert status_of(failed) == 3
    assert capsys.readouterr().err == "hogwild: worker 0 raised\nbatch 2 has one sample\n"
