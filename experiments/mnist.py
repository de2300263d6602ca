"""How much faster is MNIST with every core, and what does that cost in accuracy?

    hogwild run mnist --data FOLDER                 # with MNIST's four files, gzipped or not
    hogwild run mnist --data FOLDER --workers 1

The files are train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte. The result on them has not been recorded; the tests train on scikit-learn's digits,
enlarged to 28 × 28 and written in that form.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hogwild.experiment import Problem, Training

from ._idx import mnist
from .digits import Held, loss


def build(seed: int, data: Path | None) -> Problem:
    """An MLP with one hidden layer, 203,530 parameters."""
    train, test = mnist(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    judge = Held(test)
    return Problem(model, train, loss, judge, judge.predict)


experiment = Training(
    "mnist",
    "How much faster is MNIST with every core, and what does that cost in accuracy?",
    build,
    {"epochs": 5, "batch_size": 64, "optimizer": "sgd", "lr": 0.1},
)
