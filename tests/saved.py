"""Runs on disk, made in milliseconds: a linear model under a rule of choice."""

from __future__ import annotations

import json
import os
import platform
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hogwild
from hogwild.run.saved.directory import LOCK


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def seem_killed(out: Path) -> None:
    """Leave a run as its program does that is killed: no record, and a lock signed by a process that is not there."""
    (out / "run.json").unlink()
    (out / LOCK).write_text(json.dumps({"pid": os.getpid(), "began": 0.0, "host": platform.node()}))


def save_run(
    out: Path, lr: float = 0.1, width: int = 1, start: int = 0, own_loss: Any = None, **settings: Any
) -> hogwild.Run:
    """Train and save; `start` seeds the initial model. Its accuracy is its learning rate plus a thousandth a seed."""
    torch.default_generator.manual_seed(start)
    model = nn.Linear(4, width)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    seed = settings.get("seed", 0)
    given: dict[str, Any] = {
        "update": "ordered",
        "kind": "threads",
        "batch_size": 4,
        "epochs": 2,
        "name": "line",
        "evaluate": lambda model: {"accuracy": lr + seed / 1000, "test_loss": 1 - lr},
        "out": out,
    }
    data = (x, x.sum(1, keepdim=True).expand(-1, width).contiguous())
    return hogwild.train(
        model, data, own_loss or loss, optimizer=partial(torch.optim.SGD, lr=lr), **{**given, **settings}
    )
