"""What a check says is understood by somebody who has not read how it measures; the numbers are there on demand."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import problems
import pytest
import torch

import hogwild
from hogwild.cli import checking, main
from hogwild.determinism.compare import Comparison
from hogwild.determinism.damage import Damage
from hogwild.determinism.distance import distance
from hogwild.determinism.verdict import Repeat, Verdict
from hogwild.testing import RandomDelays, assert_deterministic, planted

NONE = Damage(updates=100, racing=0.027, scheduling=0.12, log=0.078, corrected=0.0)
SOME = Damage(updates=100, racing=0.3, scheduling=0.12, log=0.078, corrected=0.0)
LITTLE = Damage(updates=100, racing=0.1, scheduling=0.12, log=0.078, corrected=0.0)


def verdict(*damage: Damage) -> Verdict:
    model, state = problems.mlp(), problems.mlp().state_dict()
    state["0.weight"] = state["0.weight"] + 1
    found = Comparison(distance(model, state), None)
    return Verdict("t", None, (Repeat("a"), Repeat("b")), (found,), found, None, damage=damage)


def told(*damage: Damage, verbose: bool = False) -> list[str]:
    return [finding for what, finding in verdict(*damage).lines(verbose=verbose) if what == "race damage"]


def test_one_line_in_plain_words():
    assert told(NONE) == [
        "none to be seen: each run is, as exactly as its log tells, what its updates give in that order without a race"
    ]
    assert told(SOME, NONE) == [
        "much: reads and writes that collided changed the model, by update 100, more than the chance order of the "
        "updates"
    ]
    assert told(LITTLE) == [
        "little: reads and writes that collided changed the model, by update 100, less than the chance order of the "
        "updates"
    ]
    assert all(len(line) <= 2 * (80 - len("  race damage       ")) for line in (*told(SOME), *told(LITTLE)))
    assert told() == []


def test_no_numbers_but_of_updates_unless_asked_for():
    assert not re.search(r"\d\.\d", "".join(told(NONE) + told(SOME)))
    (plain, *detailed) = told(SOME, NONE, verbose=True)
    assert plain == told(SOME, NONE)[0]
    assert "0.3 from a clean replay of the run's own log, which is exact to 0.078" in detailed[0]
    assert "0.027" in detailed[1] and "order alone: 0.12" in detailed[1]


@pytest.mark.parametrize(("accuracy", "told"), [(0.975, "error 2.5 % ± 0"), (97.5, None), (float("nan"), None)])
def test_an_error_is_told_of_accuracies_that_are_shares(accuracy: float, told: str | None) -> None:
    found = replace(verdict(), runs=(Repeat("a", accuracy=accuracy), Repeat("b", accuracy=accuracy)))
    assert dict(found.lines()).get("predictions") == told


@pytest.mark.parametrize("verbose", [False, True])
def test_the_command_has_a_flag_for_them(tmp_path: Path, verbose: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(checking, "check_subject", lambda *arguments, **others: verdict(NONE))
    arguments = ["check", "--command", "cp a {out}", "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*arguments, *(["--verbose"] if verbose else [])]) == 1
    shown = capsys.readouterr().out
    assert "none to be seen" in shown and ("order alone" in shown) == verbose


SUITE = """
import torch, hogwild
from functools import partial

def training():
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    model = torch.nn.Linear(8, 64)
    def loss(model, batch):
        return model(batch).square().mean()
    return hogwild.train(model, x, loss, optimizer=partial(torch.optim.SGD, lr=0.1), epochs=30, batch_size=4, workers=2)

def test_it(determinism):
    determinism.assert_deterministic(training, runs=4)
"""


def test_a_failure_in_pytest_names_the_rule_and_shows_none_of_our_frames(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "trained under hogwild" in done.stdout and 'update="ordered"' in done.stdout
    assert "determinism.assert_deterministic(training, runs=4)" in done.stdout
    frames = re.findall(r"^(\S+\.py):\d+: ", done.stdout, re.MULTILINE)
    assert frames and not any("hogwild" in Path(frame).parts for frame in frames), frames


def test_the_same_for_a_model() -> None:
    delays = planted(RandomDelays(1, share=0.2))  # so that workers meet, however fast each is
    with delays, pytest.raises(AssertionError, match=r'trained under racing.*update="ordered"'):
        assert_deterministic(
            problems.mlp(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, update="racing",
            updates=400, batch_size=4, workers=2, runs=4,
        )  # fmt: skip


def test_under_a_rule_that_promises_them_no_other_is_named() -> None:
    found = hogwild.check(
        problems.mlp(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, update="ordered", updates=4,
        batch_size=16, runs=2, controls=False,
    )  # fmt: skip
    assert "trained under" not in str(found)


def test_what_no_tolerance_allows_and_what_was_measured_is_said() -> None:
    counter = itertools.count()

    def train() -> dict[str, torch.Tensor]:
        number = next(counter)
        return {"w": torch.tensor([1.0 + number / 4]), "batches": torch.tensor(100 + number)}

    verdict = hogwild.check(train, runs=2, tolerance=5.0, measure="max_abs")
    told = dict(verdict.lines())["parameters"]
    assert not verdict.passed and "max_abs 0.25 at most" in told
    assert "integers differ in batches, which no tolerance allows" in told
    told = dict(hogwild.check(train, runs=2).lines())["parameters"]
    assert told.endswith("integers differ in batches") and "max_abs" not in told
