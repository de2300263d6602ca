"""Does a small network learn to read digits while several workers write to it at once, without a lock?

    hogwild run digits                                          # 2 processes, rule hogwild
    hogwild run digits --update ordered --workers 1             # and the same digest with
    hogwild run digits --update ordered --kind threads          # other workers

scikit-learn's 1,797 images of 8 × 8 pixels, of which 297 are held out. Seen on 2 cores: .983 of them right, as with
one worker, after 2,820 updates in 0.8 s (processes) or 1.8 s (threads); .973 to .983 over 6 seeds × hogwild, locked ×
both kinds. Under `ordered` one digest (58d4d37e… on that machine) for 1 or 2 threads or processes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hogwild.errors import ArgumentError
from hogwild.experiment import Problem, Training

from ._common import digits

Batch = tuple[Tensor, Tensor]


def split() -> tuple[Batch, Batch]:
    """1,500 images of shape [N, 1, 8, 8] with labels [N] to train on, and 297 held out; the same for every seed.

    The data set is in the order in which people wrote it. It is shuffled once, so that both parts have every hand.
    """
    train_images, train_labels, test_images, test_labels = digits()
    images, labels = torch.cat((train_images, test_images)), torch.cat((train_labels, test_labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]
    return (images[train], labels[train]), (images[test], labels[test])


class Held:
    """Judges a model on held-out images: share classified right (`accuracy`), mean cross-entropy (`test_loss`)."""

    def __init__(self, batch: Batch) -> None:
        self.images, self.labels = batch

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics of a model, in evaluation mode."""
        logits, labels = self.predict(model)
        right = (logits.argmax(1) == labels).float().mean()
        return {"accuracy": right.item(), "test_loss": cross_entropy(logits, labels).item()}

    def predict(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """(logits [N, 10], labels [N]) of a model, in evaluation mode."""
        model.eval()
        with torch.no_grad():
            return torch.cat([model(images) for images in torch.split(self.images, 1000)]), self.labels


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of a batch."""
    images, labels = batch
    return cross_entropy(model(images), labels)


def refuse(data: Path | None) -> None:
    """Say that no folder of data is read."""
    if data is not None:
        raise ArgumentError(f"--data {data} given, and the digits come with scikit-learn; leave it out")


def build(seed: int, data: Path | None) -> Problem:
    """An MLP with one hidden layer, 19,210 parameters."""
    refuse(data)
    train, held = split()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    judge = Held(held)
    return Problem(model, train, loss, judge, judge.predict)


experiment = Training(
    "digits",
    "Does a small network learn to read digits while workers write to it at once?",
    build,
    {"epochs": 30, "batch_size": 16, "optimizer": "sgd", "lr": 0.5},
)
