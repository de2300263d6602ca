"""What is trained: five small models and a large one on generated data of the right shapes, from which they can learn.

Shapes: N samples, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]

BENCH_OPTIMIZERS = ("sgd", "adam")
_CLASSES = 10
_JUDGED = 512  # samples on which a trained model is judged
_VOCABULARY, _WIDTH = 10_000, 32  # rows of each embedding table, and factors in a row
_HIDDEN_WIDTH = 4  # factors that generated the ratings
_APART = 3.0  # length of a class's centre, in standard deviations of the noise; twice that for images
_LR_BATCH = 64  # the batch that a problem's learning rate is for


@dataclass(frozen=True)
class BenchProblem:
    """A model, its data and its loss.

    Attributes:
        name: what `--problems` calls it.
        about: what it is, in a line.
        build: makes the model; importable, so that a new process can make it too.
        generate: makes the data, tensors of N rows each, the same at every call.
        loss: (model, batch) → the mean loss of a batch, a scalar.
        sgd_lr: SGD's learning rate for a batch of 64.
        sparse: its gradients are sparse.
    """

    name: str
    about: str
    build: Callable[[], nn.Module]
    generate: Callable[[], Batch]
    loss: Callable[[nn.Module, Any], Tensor]
    sgd_lr: float
    sparse: bool = False

    def model(self) -> nn.Module:
        """The initial model, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def optimizer(self, name: str, batch_size: int) -> Callable[..., Optimizer]:
        """A factory of the named optimizer.

        SGD's learning rate is proportional to the batch (Goyal et al. 2017), so that batches of one sample train
        too. Sparse gradients take `torch.optim.SparseAdam` for "adam".
        """
        if name == "sgd":
            return partial(torch.optim.SGD, lr=self.sgd_lr * batch_size / _LR_BATCH)
        return partial(torch.optim.SparseAdam, lr=1e-2) if self.sparse else partial(torch.optim.Adam, lr=1e-3)

    def judge(self, model: nn.Module, data: Batch) -> float:
        """The mean loss of the first 512 samples."""
        with torch.no_grad():
            return self.loss(model, tuple(tensor[:_JUDGED] for tensor in data)).item()


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of inputs [B, …] and classes, int64 [B]."""
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    """The mean squared error of ratings [B] of users and items, int64 [B] each."""
    users, items, ratings = batch
    return nn.functional.mse_loss(model(users, items), ratings)


def small_mlp() -> nn.Module:
    """64-32-10, 2,410 parameters."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, _CLASSES))


def mlp() -> nn.Module:
    """784-256-10, 203,530 parameters."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, _CLASSES))


def thin_mlp() -> nn.Module:
    """784-32-10, 25,450 parameters."""
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, _CLASSES))


def large() -> nn.Module:
    """1000-9900-10, 10,008,910 parameters."""
    return nn.Sequential(nn.Linear(1000, 9900), nn.ReLU(), nn.Linear(9900, _CLASSES))


def conv() -> nn.Module:
    """The net of PyTorch's mnist_hogwild example without its dropout; 21,840 parameters.

    Threads share the generator that dropout draws from, so rules that promise the same bits would refuse them.
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, _CLASSES),
    )


class Factors(nn.Module):
    """Matrix factorisation: a rating is the inner product of a user's and an item's row; 640,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(_VOCABULARY, _WIDTH, sparse=True)
        self.items = nn.Embedding(_VOCABULARY, _WIDTH, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Ratings [B] of users and items, int64 [B] each."""
        ratings: Tensor = (self.users(users) * self.items(items)).sum(1)
        return ratings


def clusters(samples: int, features: int) -> Batch:
    """Noise around a centre per class: float32 [N, features] and int64 [N]."""
    generator = torch.Generator().manual_seed(1)
    centres = _APART / features**0.5 * torch.randn(_CLASSES, features, generator=generator)
    classes = torch.randint(_CLASSES, (samples,), generator=generator)
    return centres[classes] + torch.randn(samples, features, generator=generator), classes


def images(samples: int) -> Batch:
    """Noise around an image of coarse blocks per class: float32 [N, 1, 28, 28] and int64 [N]."""
    generator = torch.Generator().manual_seed(1)
    blocks = 2 * _APART / 28 * torch.randn(_CLASSES, 1, 7, 7, generator=generator)
    centres = blocks.repeat_interleave(4, 2).repeat_interleave(4, 3)
    classes = torch.randint(_CLASSES, (samples,), generator=generator)
    return centres[classes] + torch.randn(samples, 1, 28, 28, generator=generator), classes


def rated_pairs(samples: int) -> Batch:
    """Users and items, int64 [N], a few of them far more often than others, as words are; ratings, float32 [N]."""
    generator = torch.Generator().manual_seed(1)

    def drawn() -> tuple[Tensor, Tensor]:
        rows = _VOCABULARY ** torch.rand(samples, generator=generator)  # Zipf's law: log of the rank is uniform
        return rows.long().clamp_(max=_VOCABULARY - 1), torch.randn(_VOCABULARY, _HIDDEN_WIDTH, generator=generator)

    (users, of_users), (items, of_items) = drawn(), drawn()
    return users, items, (of_users[users] * of_items[items]).sum(1)


_ALL = (
    BenchProblem(
        name="small-mlp",
        about="MLP 64-32-10, 2,410 parameters",
        build=small_mlp,
        generate=partial(clusters, 8192, 64),
        loss=cross_entropy,
        sgd_lr=0.1,
    ),
    BenchProblem(
        name="thin-mlp",
        about="MLP 784-32-10, 25,450 parameters",
        build=thin_mlp,
        generate=partial(clusters, 8192, 784),
        loss=cross_entropy,
        sgd_lr=0.1,
    ),
    BenchProblem(
        name="mlp",
        about="MLP 784-256-10, 203,530 parameters",
        build=mlp,
        generate=partial(clusters, 8192, 784),
        loss=cross_entropy,
        sgd_lr=0.1,
    ),
    BenchProblem(
        name="conv",
        about="the conv net of PyTorch's mnist_hogwild example, without dropout, 21,840 parameters",
        build=conv,
        generate=partial(images, 8192),
        loss=cross_entropy,
        sgd_lr=0.05,
    ),
    BenchProblem(
        name="embedding",
        about="matrix factorisation, two sparse tables of 10,000 × 32",
        build=Factors,
        generate=partial(rated_pairs, 65_536),
        loss=squared_error,
        sgd_lr=1.0,
        sparse=True,
    ),
    BenchProblem(
        name="large",
        about="MLP 1000-9900-10, 10,008,910 parameters",
        build=large,
        generate=partial(clusters, 8192, 1000),
        loss=cross_entropy,
        sgd_lr=0.1,
    ),
)
PROBLEMS: Mapping[str, BenchProblem] = {problem.name: problem for problem in _ALL}
COMPARED = tuple(name for name in PROBLEMS if name not in ("thin-mlp", "large"))
"""Those that are measured where none is named: a step of the large one is slow, and the thin one is like the small."""
