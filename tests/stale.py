"""Trainings by gradients that are three updates old, compensated, and the same by the reference."""

from __future__ import annotations

from typing import Any

import problems
import pytest

import hogwild

TAU, UPDATES = 3, 24
BOTH = pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
FIXED: dict[str, Any] = {"update": "ordered", "staleness": TAU, "compensation": "auto", "updates": UPDATES}


def train(**arguments: Any) -> hogwild.Run:
    return problems.train(arguments.pop("model", problems.conv_bn)(), **{**FIXED, **arguments})


def by_reference(**arguments: Any) -> str:
    model = arguments.pop("model", problems.conv_bn)()
    problems.train_serially(model, **{**FIXED, **arguments})
    return hogwild.digest(model)
