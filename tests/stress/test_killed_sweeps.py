"""A sweep is killed (SIGKILL) at random instants, alone or with its runs, and started again: the table is the same.

pytest tests/stress -k killed_sweeps            two kills
HOGWILD_SWEEP_KILLS=30 pytest tests/stress …    as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from programs import left_running_in, running_in

from hogwild.experiment import Training, find, settings_of
from hogwild.run.training import train_experiment

pytestmark = pytest.mark.stress

KILLS = int(os.environ.get("HOGWILD_SWEEP_KILLS", "2"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
LONGEST = 3.0  # seconds that a sweep lives after it has begun so many runs
UPDATES = 150

FILE = f"""
import time
import hogwild
import torch


def build(pause: float = 0.0) -> hogwild.Problem:
    def loss(model, batch):
        time.sleep(pause)
        return (model(batch) - batch).square().mean()

    data = torch.randn(200, 2)
    evaluate = lambda model: {{"error": (model(data) - data).square().mean().item()}}
    return hogwild.Problem(torch.nn.Linear(2, 2), data, loss, evaluate)


hogwild.define_experiment(build, update="ordered", updates={UPDATES}, batch_size=10, lr=0.1, checkpoint_every=20)
"""
SEEDS = (0, 1, 2)


def sweep(file: Path, out: Path) -> subprocess.Popen[str]:
    command = ["sweep", str(file), "--seed", *map(str, SEEDS), "--pause", "0.005", "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "hogwild", *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def killed(file: Path, out: Path, choices: random.Random) -> str:
    """Begin the sweep, or go on with it, and kill it; says how."""
    begun, delay, all_at_once = choices.randrange(len(SEEDS) + 1), choices.uniform(0, LONGEST), choices.random() < 0.5
    process = sweep(file, out)
    while len(list(out.glob("*/origin.json"))) < begun and process.poll() is None:
        time.sleep(0.02)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        for one in [psutil.Process(process.pid), *(running_in(out) if all_at_once else [])]:
            one.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, -9), errors
    return f"{'all' if all_at_once else 'the sweep'} killed {delay:.1f} s after run {begun}: {process.returncode}"


def alone(file: Path, seed: int) -> tuple[str, dict]:
    """(digest, metrics) of the same run without a sweep."""
    training, _ = find(str(file))
    assert isinstance(training, Training)
    config = settings_of(training, {"seed": seed, "checkpoint_every": None})
    run = train_experiment(training, config)
    return run.digest, {**run.metrics, "loss": run.loss}


@pytest.mark.timeout(3600)
def test_killed_sweeps(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    print(f"HOGWILD_SEED={SEED}")
    choices, out = random.Random(SEED), tmp_path / "out"
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")
    expected = {seed: alone(tmp_path / "own.py", seed) for seed in SEEDS}
    for number in range(KILLS):
        if number and number % 5 == 0:
            out = tmp_path / f"out-{number}"
        print(killed(tmp_path / "own.py", out, choices))
    process = sweep(tmp_path / "own.py", out)
    table, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found = json.loads(table)
    assert [row["status"] for row in found["rows"]] == ["done"] * len(SEEDS)
    for row in found["rows"]:
        assert (row["digest"], row["metrics"]) == expected[row["settings"]["seed"]]
        assert row["updates"] == UPDATES
    assert not left_running_in(out)
    assert not list(out.rglob(".*")), "a sweep that was killed has left something"
