"""An experiment that a test offers to the command line: one that ends in a moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hogwild.experiment import Experiment, Problem

Offer = Callable[[Experiment], None]
DEFAULTS: dict[str, Any] = {"updates": 4, "batch_size": 4, "kind": "threads", "optimizer": "sgd", "lr": 0.01}


def linear(seed: int, data: Path | None) -> Problem:
    """A layer that is to give zeros for ones."""
    torch.default_generator.manual_seed(seed)
    return Problem(nn.Linear(2, 1), torch.ones(8, 2), lambda model, batch: model(batch).square().mean())
