"""Files of a person's own that define experiments, for the tests of whoever runs them."""

from __future__ import annotations

from pathlib import Path

RINGS = '''\
"""Which ring does a point lie on?"""
from __future__ import annotations

from dataclasses import dataclass

import hogwild
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from helper import SCALE


@dataclass
class Judge:
    points: torch.Tensor
    labels: torch.Tensor

    def __call__(self, model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(self.points).argmax(1) == self.labels).float().mean().item()}


class Net(nn.Sequential):
    pass


def build(hidden: int = 8, noise: float = 0.1, deep: bool = False) -> hogwild.Problem:
    """Rings.

    Args:
        hidden: Units of the hidden layer.
    """
    labels = torch.randint(2, (300,))
    points = nn.functional.normalize(torch.randn(300, 2)) * (1 + labels)[:, None] + noise * torch.randn(300, 2)
    more = [nn.Linear(hidden, hidden), nn.ReLU()] if deep else []
    model = Net(nn.Linear(2, hidden), nn.ReLU(), *more, nn.Linear(hidden, 2))
    loss = lambda model, batch: SCALE * cross_entropy(model(batch[0]), batch[1])
    return hogwild.Problem(model, (points, labels), loss, Judge(points[:100], labels[:100]))


hogwild.define_experiment(build, epochs=2, lr=0.1, batch_size=10)
'''


def rings(folder: Path, name: str = "rings.py") -> Path:
    """A file with an experiment of its own, and the module beside it that it imports."""
    (folder / "helper.py").write_text("SCALE = 1.0\n", encoding="utf-8")
    path = folder / name
    path.write_text(RINGS, encoding="utf-8")
    return path
