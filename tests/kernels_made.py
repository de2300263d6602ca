"""A kernel without a compiler: small enough for tests, with a plain loop to hold runs against."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import hogwild

ROWS, WIDTH, SIZE, TICKETS = 50, 4, 8, 40


class Tables(nn.Module):
    """Two tables, one of which counts, and a layer that no kernel knows."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.value = nn.Parameter(torch.randn(ROWS, WIDTH, generator=generator))
        self.count = nn.Parameter(torch.zeros(ROWS, 1))
        self.bias = nn.Parameter(torch.ones(3))


def draw(ticket, seed):
    generator = np.random.default_rng(seed)
    return {
        "near": generator.integers(ROWS, size=SIZE).astype(np.int32),
        "far": generator.integers(ROWS, size=(2, SIZE)),
        "goal": generator.standard_normal((SIZE, WIDTH)).astype(np.float32),
    }


def step(tables, drawn, rate):
    loss = 0.0
    for near, far, goal in zip(drawn["near"], drawn["far"].T, drawn["goal"], strict=True):
        error = tables["value"][near] - goal
        tables["value"][near] -= np.float32(rate) * error
        tables["count"][far[0]] += 1
        tables["count"][far[1]] += 1
        loss += float((error * error).mean())
    return loss / SIZE


def kernel(**changed):
    made = {"draw": draw, "step": step, "rows": {"near": "value", "far": "count"}, "tickets": TICKETS, "lr": 0.1}
    return hogwild.Kernel(**{**made, **changed})


def by_hand(epochs=1, seed=0):
    """The tables after the plain loop: every ticket in place, one after the other."""
    from hogwild.data.seeding import mix

    model = Tables()
    tables = {"value": model.value.detach().numpy(), "count": model.count.detach().numpy()}
    for ticket in range(epochs * TICKETS):
        step(tables, draw(ticket, mix(seed, ticket)), 0.1)
    return model
