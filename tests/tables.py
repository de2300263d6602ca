"""A model of one table with sparse gradients, data that reach a few of its rows, and optimizers that step them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hogwild
from hogwild.reference import train_serially
from hogwild.shared.tables import RowTable

ROWS, WIDTH, CLASSES = 50, 8, 3
UPDATES, BATCH = 30, 16

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.5),
    "sparse adam": partial(torch.optim.SparseAdam, lr=0.02),
    "adagrad": partial(torch.optim.Adagrad, lr=0.2, lr_decay=0.01, initial_accumulator_value=0.1),
    "row adagrad": partial(hogwild.RowAdagrad, lr=0.2, initial_accumulator_value=0.1),
    "adam": partial(torch.optim.Adam, lr=0.02),
}


def name_half(table: RowTable, words: Any, rows: list[int]) -> None:
    """Who was naming rows died halfway: the words of the others are those from before."""
    late = rows[len(rows) // 2 :]
    table.newest[late] = words[late]


class Bag(nn.Module):
    """Mean of a bag of rows, and a frozen layer: all that is trained has sparse gradients."""

    def __init__(self, rows: int, bag: bool) -> None:
        super().__init__()
        kind = partial(nn.EmbeddingBag, mode="mean") if bag else nn.Embedding
        self.table = kind(rows, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        inner = self.table(words)
        return self.head(inner if inner.dim() == 2 else inner.mean(1))


def made(rows: int = ROWS, *, bag: bool = False) -> nn.Module:
    torch.default_generator.manual_seed(0)
    return Bag(rows, bag)


def words(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Words of which some come twice in a batch, and classes; the same few rows whatever the table."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(rows, (ROWS,), generator=generator)
    x = rows[torch.randint(ROWS, (200, 5), generator=generator)]
    return x, torch.mode(x % CLASSES, 1).values


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def plain(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], update: str = "hogwild") -> str:
    """The digest that serial training leaves, by the reference."""
    settings = {"update": update, "micro_batches": 1, "updates": UPDATES, "batch_size": BATCH}
    train_serially(model, words(), loss, optimizer=optimizer, **settings)
    return hogwild.digest(model)


def train(model: nn.Module, optimizer: str = "sgd", **arguments: Any) -> hogwild.Run:
    settings = {"kind": "threads", "workers": 1, "updates": UPDATES, "batch_size": BATCH, "staleness": 0}
    settings["micro_batches"] = 1
    return hogwild.train(
        model, arguments.pop("data", words()), loss, optimizer=OPTIMIZERS[optimizer], **(settings | arguments)
    )
