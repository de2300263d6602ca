"""`hogwild new`: a file to start from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.status import DONE
from hogwild.errors import ArgumentError

_TEMPLATE = '''"""Does a small network learn which of three rings a point lies on?

hogwild run {name} --hidden 64
hogwild check {name} --update ordered
hogwild sweep {name} --lr 0.1 0.3 --seed 0..4
"""

import hogwild
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RINGS = 3


def build(hidden: int = 32, noise: float = 0.3) -> hogwild.Problem:
    """Points on rings, and a network with one hidden layer.

    What is drawn here follows --seed. Each parameter of this function is a flag.

    Args:
        hidden: Units of the hidden layer.
        noise: How far points lie from their ring, at one standard deviation.
    """
    ring = torch.randint(RINGS, (2_500,))
    angle = 2 * torch.pi * torch.rand(len(ring))
    points = (1 + ring)[:, None] * torch.stack((angle.cos(), angle.sin()), 1)
    points += noise * torch.randn(len(ring), 2)
    train, held = (points[500:], ring[500:]), (points[:500], ring[:500])

    model = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, RINGS))

    def evaluate(model: nn.Module) -> dict[str, float]:
        right = model(held[0]).argmax(1) == held[1]
        return {{"accuracy": right.float().mean().item()}}

    def predict(model: nn.Module) -> tuple[Tensor, Tensor]:
        """Let `hogwild check` say how many predictions differ; may be left out."""
        with torch.no_grad():
            return model(held[0]), held[1]

    return hogwild.Problem(model, train, loss, evaluate, predict)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy of a batch."""
    points, ring = batch
    return cross_entropy(model(points), ring)


# The settings that suit it; flags go over them. hogwild run --help lists all.
hogwild.define_experiment(build, epochs=10, batch_size=32, optimizer="adam", lr=0.01)
'''


@dataclass(frozen=True)
class NewCommand:
    """Write a file that defines an experiment, to start from."""

    more: ClassVar[str] = (
        "Examples:\n"
        "  hogwild new train.py     write it\n"
        "  hogwild run train.py     train what it defines\n\n"
        "Exit status:\n"
        "  0      done\n"
        "  2      the file is there already, or cannot be written"
    )

    name: Annotated[Positional[str], arg(metavar="NAME", help_behavior_hint="")] = ""
    """The file to write: train.py, or train for short."""

    def run(self) -> int:
        """Write it."""
        if not self.name:
            raise ArgumentError("no file named; hogwild new train.py writes train.py")
        path = Path(self.name)
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; {path / 'train.py'} would be a file in it")
        if not path.suffix:
            path = path.with_name(f"{path.name}.py")
        if path.suffix != ".py":
            raise ArgumentError(f"{path} is no name of a Python file; {path.stem}.py is one")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(_TEMPLATE.format(name=path.name))
        except FileExistsError:
            raise ArgumentError(f"{path} is there already, and stays as it is; another name works") from None
        except OSError as error:
            raise ArgumentError(f"{path} cannot be written ({error.strerror}); name another place") from error
        sys.stdout.write(f"wrote {path}; hogwild run {quote(str(path))} trains what it defines\n")
        return DONE
