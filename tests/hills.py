"""Runs whose best version lies on the way: a metric that rises, and falls again before the end."""

from __future__ import annotations

import json

import problems
import pytest
from safetensors import safe_open

import hogwild

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


def interrupted(folder, update, at, **settings):
    """A run that is interrupted in that evaluation."""
    evaluate = problems.interrupting(1 + at // 5, hill)  # the first call is on trial
    with pytest.raises(KeyboardInterrupt):
        problems.train(update=update, out=folder, **{**SETTINGS, "evaluate": evaluate, **settings})


def best_in_checkpoint(folder):
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        return json.loads(file.metadata().get("best", "null"))
