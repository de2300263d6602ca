"""Random numbers in a loop of one's own: those that threads share are told of where the same bits are promised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from traits import SAME_BITS

import hogwild


def launched(work: Callable[[Any], None], **settings: Any) -> hogwild.Run:
    defaults = {"updates": 6, "update": "ordered", "kind": "threads", "workers": 1}
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return hogwild.launch(work, nn.Linear(3, 2), optimizer=optimizer, **defaults | settings)


def samples(worker: hogwild.Worker, own: bool = False) -> None:
    while ticket := worker.claim():
        replica = worker.read(ticket)
        batch = torch.rand(4, 3, generator=worker.info.generator if own else None)
        loss = replica(batch).square().mean()
        worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss)


def draws_in_evaluation(model: nn.Module) -> dict[str, float]:
    return {"drawn": torch.rand(1).item()}


@pytest.mark.parametrize("update", SAME_BITS)
def test_draws_from_what_threads_share_are_told(update: str) -> None:
    with pytest.warns(UserWarning, match="torch's default generator, .* was drawn from .*: use worker.info.generator"):
        launched(samples, update=update)


@pytest.mark.parametrize(
    ("work", "settings"),
    [
        (samples, {"kind": "processes"}),
        (samples, {"update": "hogwild"}),
        (partial(samples, own=True), {"evaluate": draws_in_evaluation, "evaluate_every": 2}),
    ],
    ids=["processes", "racing", "a worker's own, and an evaluation"],
)
def test_other_draws_are_not(work: Callable[[Any], None], settings: dict[str, Any]) -> None:
    assert launched(work, **settings).updates == 6  # a warning fails a test
