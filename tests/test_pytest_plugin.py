"""The fixture and the assertions for other people's test suites, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import hogwild
from hogwild.testing import assert_deterministic, assert_divergence_below

SUITE = """
import hogwild, os, torch

def same():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)

def other():
    return {"w": torch.tensor([float(int.from_bytes(os.urandom(3)))])}

def test_same(determinism):
    assert determinism.assert_deterministic(same, runs=3).identical

def test_threads_are_shared(determinism):
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    assert torch.get_num_threads() * workers <= max(os.cpu_count(), workers)

def test_bounded(determinism):
    determinism.assert_divergence_below(other, limit=1e9, measure="max_abs")

def test_fails(determinism):
    determinism.assert_deterministic(other)

def test_is_called_already(determinism):
    determinism.assert_deterministic(other())

def test_trains_nothing():
    hogwild.train(same(), torch.zeros(4, 4), "mse", optimizer=torch.optim.SGD, epochs=1)
"""


def test_another_suite_uses_the_fixture_under_xdist(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text(SUITE)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "."],
        check=False, cwd=tmp_path, capture_output=True, text=True, env=clean,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "3 failed, 3 passed" in done.stdout
    assert "it was given a dict: give the function, uncalled" in done.stdout
    assert "Args:" not in done.stdout, "of what is called only the line of the test is shown"
    assert "the training is not deterministic" in done.stdout
    assert "3 digests in 3 runs" in done.stdout  # the verdict is in the message


def test_the_message_is_the_verdict():
    def other():
        return {"w": torch.tensor([float(int.from_bytes(os.urandom(3)))])}

    with pytest.raises(AssertionError, match="other · 3 runs(.|\n)*verdict: runs diverge"):
        assert_deterministic(partial(partial(other)))
    with pytest.raises(AssertionError, match="further apart than max_abs 0.001"):
        assert_divergence_below(other, limit=1e-3, measure="max_abs")


def test_what_cannot_be_run_is_no_assertion_about_it():
    with pytest.raises(hogwild.ArgumentError):
        assert_deterministic(lambda: None)
    model = nn.Linear(2, 2)
    with pytest.raises(hogwild.ArgumentError):
        assert_divergence_below(lambda: model, limit=1.0)
    with pytest.raises(hogwild.ArgumentError, match="^limit 'x' is not a number"):
        assert_divergence_below(lambda: model, limit="x")
