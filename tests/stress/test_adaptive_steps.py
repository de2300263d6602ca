"""Adaptive steps without a lock, over and over: none blows up, and the loss is that of training under a lock.

HOGWILD_ADAPTIVE=50 pytest tests/stress -k adaptive     fifty runs of each, in place of eight: minutes
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import fmean, variance
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import hogwild
from hogwild.determinism.interval import t_quantile

RUNS = int(os.environ.get("HOGWILD_ADAPTIVE", "8"))
SURELY = 1 - 1e-5  # of few runs the spread is known badly: Student's t
ENTITIES, RELATIONS, WIDTH = 24, 3, 16
UPDATES, BATCH, PROCESSES_EVERY = 250, 16, 10

OPTIMIZERS: dict[str, tuple[bool, Callable[..., torch.optim.Optimizer]]] = {
    "sparse adagrad": (True, partial(torch.optim.Adagrad, lr=0.3)),
    "sparse row adagrad": (True, partial(hogwild.RowAdagrad, lr=0.3)),
    "sparse adam": (True, partial(torch.optim.SparseAdam, lr=0.02)),
    "adagrad": (False, partial(torch.optim.Adagrad, lr=0.3)),
    "adam": (False, partial(torch.optim.Adam, lr=0.02)),
}


class ComplEx(nn.Module):
    """Scores of triples (Trouillon et al. 2016); so few entities that workers often meet in a row."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entity = nn.Embedding(ENTITIES, WIDTH, sparse=sparse)
        self.relation = nn.Embedding(RELATIONS, WIDTH, sparse=sparse)

    def forward(self, triples: Tensor) -> Tensor:
        a, r, b = self.entity(triples[:, 0]), self.relation(triples[:, 1]), self.entity(triples[:, 2])
        (ar, ai), (rr, ri), (br, bi) = (x.chunk(2, 1) for x in (a, r, b))
        return ((ar * rr - ai * ri) * br + (ar * ri + ai * rr) * bi).sum(1)


def graph() -> tuple[Tensor, Tensor]:
    """Relation r leads from an entity to those r + 1 further on; half of the triples are none."""
    generator = torch.Generator().manual_seed(1)
    heads, relations = (torch.randint(n, (800,), generator=generator) for n in (ENTITIES, RELATIONS))
    true = torch.rand(800, generator=generator) < 0.5
    tails = torch.where(true, heads + relations + 1, torch.randint(ENTITIES, (800,), generator=generator)) % ENTITIES
    return torch.stack((heads, relations, tails), 1), true.float() * 2 - 1


def loss(model: nn.Module, batch: Any) -> Tensor:
    triples, labels = batch
    return softplus(-labels * model(triples)).mean()


def trained(name: str, update: str, number: int) -> float:
    """The loss over all triples after a run."""
    sparse, optimizer = OPTIMIZERS[name]
    model, kind = ComplEx(sparse), "processes" if number % PROCESSES_EVERY == PROCESSES_EVERY - 1 else "threads"
    settings = {"update": update, "kind": kind, "workers": 2, "updates": UPDATES, "batch_size": BATCH, "seed": number}
    hogwild.train(model, graph(), loss, optimizer=optimizer, **settings)
    with torch.no_grad():
        return float(loss(model, graph()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_adaptive_steps_do_not_blow_up(name: str) -> None:
    losses = {update: [trained(name, update, run) for run in range(RUNS)] for update in ("hogwild", "locked")}
    raced, locked = losses["hogwild"], losses["locked"]
    print(name, *(f"{update} {min(own):.3f} {fmean(own):.3f} {max(own):.3f}" for update, own in losses.items()))
    assert max(raced) < 2 * max(locked)
    noise = ((variance(raced) + variance(locked)) / RUNS) ** 0.5
    assert abs(fmean(raced) - fmean(locked)) <= t_quantile(RUNS - 1, SURELY) * noise + 0.02 * fmean(locked)
