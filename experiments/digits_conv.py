"""Do BatchNorm's running statistics survive several workers that change them at once?

    hogwild run digits-conv
    hogwild run digits-conv --update ordered

A convolutional network on the data of `digits`. RESULT
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hogwild.experiment import Problem, Training

from .digits import Held, loss, split


def build(seed: int, data: Path | None) -> Problem:  # noqa: ARG001 - the digits come with scikit-learn
    """Two convolutions with BatchNorm, and a linear layer; 10,010 parameters."""
    train, held = split()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
    return Problem(model, train, loss, Held(held))


experiment = Training(
    "digits-conv",
    "Do BatchNorm's running statistics survive workers that change them at once?",
    build,
    {"epochs": 10, "batch_size": 16, "optimizer": "sgd", "lr": 0.05},
)
