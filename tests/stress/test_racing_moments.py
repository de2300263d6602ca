"""Adaptive optimizers without a lock, many runs: none goes wrong, and what they come to is what a lock comes to.

A model of a graph: rows that many edges share are written by both processes at once, and rows that few share begin
with nothing in their accumulator, where a lost write made a step of any size. `HOGWILD_RACES` is how many runs. That no
step is larger than it could be serially, whatever is lost, stands in tests/optim/test_racing_steps.py.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import hogwild
from hogwild.rules.registry import names_where

RUNS = int(os.environ.get("HOGWILD_RACES", "2"))
NODES, WIDTH, EDGES, BATCH, UPDATES = 3000, 32, 40_000, 256, 600
OPTIMIZERS: dict[str, Any] = {
    "sparse adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "sparse row adagrad": partial(hogwild.RowAdagrad, lr=0.1),
    "row adagrad": partial(hogwild.RowAdagrad, lr=0.1),
    "sparse adam": partial(torch.optim.SparseAdam, lr=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.003),
}


class Graph(nn.Module):
    """An edge is likely where its nodes' rows are alike (DistMult with one relation: Yang et al. 2015)."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.tails = (nn.Embedding(NODES, WIDTH, sparse=sparse) for _ in range(2))
        for table in (self.heads, self.tails):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, edges: Tensor) -> Tensor:
        return (self.heads(edges[:, 0]) * self.tails(edges[:, 1])).sum(1)


def edges() -> Tensor:
    """Head, tail, and a tail that is none, int64 (edges, 3); a few nodes have most of the edges."""
    generator = torch.Generator().manual_seed(1)
    often = 1 / torch.arange(1, NODES + 1.0)
    heads = torch.multinomial(often, EDGES, replacement=True, generator=generator)
    tails = (7 * heads + torch.randint(20, (EDGES,), generator=generator)) % NODES
    return torch.stack([heads, tails, torch.randint(NODES, (EDGES,), generator=generator)], 1)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (softplus(-model(batch[:, :2])) + softplus(model(batch[:, [0, 2]]))).mean()


def last_loss(name: str, update: str) -> float:
    model, data = Graph(name.startswith("sparse")), edges()
    hogwild.train(
        model, data, loss, optimizer=OPTIMIZERS[name], update=update, workers=2, updates=UPDATES, batch_size=BATCH
    )
    with torch.no_grad():
        return loss(model, data).item()


@pytest.mark.stress
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_run_goes_wrong(name: str) -> None:
    (locked,) = names_where(lambda rule: rule.exact and not rule.versioned)
    expected = last_loss(name, locked)
    found = [last_loss(name, "hogwild") for _ in range(RUNS)]
    print(f"{name}: {locked} {expected:.4f}, without a lock {min(found):.4f} to {max(found):.4f}")
    assert max(found) < 1.1 * expected + 0.01
