"""Sparse gradients under the rules that keep versions: the reference's bits, whoever trains and whatever waits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tables import BATCH, OPTIMIZERS, UPDATES, WIDTH, loss, made, words
from torch import Tensor, nn

import hogwild
from hogwild.reference import train_serially
from hogwild.testing import RandomDelays, planted

VERSIONS: list[dict[str, Any]] = [
    {"update": "ordered", "staleness": 2, "compensation": "none"},
    {"update": "sync", "micro_batches": 3},
]
by_versions = pytest.mark.parametrize("settings", VERSIONS, ids=["ordered", "sync"])


def same_whoever_trains(build: Any, loss: Any, optimizer: Any, settings: dict[str, Any]) -> None:
    """The bits of the reference with one worker and with three, at the mercy of delays."""
    common = {"optimizer": optimizer, "updates": UPDATES, "batch_size": BATCH, **settings}
    expected = build()
    train_serially(expected, words(), loss, **common)
    assert hogwild.digest(expected) != hogwild.digest(build())
    for workers in (1, 3):
        with planted(RandomDelays(seed=workers, share=0.3)):
            run = hogwild.train(build(), words(), loss, workers=workers, kind="threads", **common)
        assert run.digest == hogwild.digest(expected), workers


def groups(named: Any) -> torch.optim.Optimizer:
    """The table by plain SGD, and all else with momentum."""
    by_name = dict(named)
    table = {"params": [by_name.pop("table.weight")]}
    return torch.optim.SGD([table, {"params": [*by_name.values()], "momentum": 0.9}], lr=0.3)


STEPS_OF_TORCH: dict[str, Any] = {
    "groups": groups,
    "foreach": partial(torch.optim.SGD, lr=0.3, foreach=True),
    "maximize": partial(torch.optim.Adagrad, lr=0.1, maximize=True),
    "tensor": lambda named: torch.optim.SGD(named, lr=torch.tensor(0.3)),
}


@by_versions
@pytest.mark.parametrize("optimizer", STEPS_OF_TORCH)
def test_a_step_that_is_torchs_own_moves_the_table_too(optimizer: str, settings: dict[str, Any]) -> None:
    same_whoever_trains(lambda: made().requires_grad_(True), loss, STEPS_OF_TORCH[optimizer], settings)


@by_versions
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row adagrad"])
def test_a_table_that_lies_column_by_column(optimizer: str, settings: dict[str, Any]) -> None:
    def turned() -> nn.Module:
        model = made()
        model.table.weight.data = model.table.weight.data.t().contiguous().t()
        return model

    same_whoever_trains(turned, loss, OPTIMIZERS[optimizer], settings)


FIRST = int(words()[0][hogwild.Schedule(200, BATCH).indices(0)].sum())


def is_like_the_first(x: Tensor) -> bool:
    """Of the first batch, and of a third of the others."""
    return int(x.sum()) == FIRST or int(x.sum()) % 3 == 0


def seldom(model: nn.Module, batch: Any) -> Tensor:
    """A loss in which the table has no part at first."""
    x, y = batch
    inner = torch.ones(len(y), WIDTH) if is_like_the_first(x) else model.table(x).mean(1)
    return nn.functional.cross_entropy(model.head(inner), y)


def at_first_all_of_it(model: nn.Module, batch: Any) -> Tensor:
    """A loss that gives the table a dense gradient at first."""
    return loss(model, batch) + (model.table.weight.square().mean() if is_like_the_first(batch[0]) else 0.0)


@by_versions
@pytest.mark.parametrize("of_batch", [seldom, at_first_all_of_it])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row adagrad"])
def test_a_layer_that_says_so_has_sparse_gradients_though_the_first_is_none(
    optimizer: str, of_batch: Any, settings: dict[str, Any]
) -> None:
    """Whether a gradient waits for its turn is a matter of time, and must not decide whether it is made dense."""
    same_whoever_trains(lambda: made().requires_grad_(True), of_batch, OPTIMIZERS[optimizer], settings)
