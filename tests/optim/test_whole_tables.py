"""Tables beside layers, and tables whose optimizer writes more than the rows of a gradient: the plain loop's bits."""

from __future__ import annotations

from typing import Any

import problems
import pytest
import torch
from tables import OPTIMIZERS, loss, made, train, words
from torch import Tensor, nn
from traits import VERSIONED

import hogwild


class Mixed(nn.Module):
    """A layer and two tables; where `seldom` is not so, one table gets no gradient and the other a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)
        self.seldom = nn.Embedding(50, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, *, seldom: bool) -> Tensor:
        inner = self.words(x) + self.seldom(x) if seldom else self.words(x) + self.words.weight.mean(0)
        return self.head(inner.mean(1))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row adagrad"])
@pytest.mark.parametrize("update", VERSIONED)
def test_tables_beside_layers_some_with_no_gradient_or_a_dense_one(update: str, optimizer: str) -> None:
    def part(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x, seldom=hogwild.worker_info().update % 3 == 0), y)

    def mixed() -> nn.Module:
        torch.manual_seed(5)
        return Mixed()

    settings = {"loss": part, "data": words(), "optimizer": OPTIMIZERS[optimizer], "updates": 40}
    expected = problems.train(mixed(), **settings, update="hogwild", workers=1).digest
    once = problems.train(mixed(), **settings, update=update, workers=1, staleness=0, micro_batches=1).digest
    assert once == expected


@torch.no_grad()
def shrink(stepper: torch.optim.Optimizer, *_: Any) -> None:
    for parameter in stepper.param_groups[0]["params"]:
        if parameter.requires_grad:
            parameter.mul_(0.999)


class Shrinking(torch.optim.Adagrad):
    """An optimizer that takes sparse gradients and writes every row."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        shrink(self)


@pytest.mark.parametrize("update", VERSIONED)
@pytest.mark.parametrize("how", ["subclass", "hook"])
def test_what_writes_other_rows_too_gets_whole_tables(update: str, how: str) -> None:
    def optimizer(named: Any) -> torch.optim.Optimizer:
        if how == "subclass":
            return Shrinking(named, lr=0.2)
        stepper = torch.optim.Adagrad(named, lr=0.2)
        stepper.register_step_post_hook(shrink)
        return stepper

    settings = {"data": words(), "loss": loss, "optimizer": optimizer, "workers": 1, "staleness": 0, "micro_batches": 1}
    expected = problems.train(made(), **settings, update="hogwild").digest
    assert problems.train(made(), **settings, update=update).digest == expected


@pytest.mark.parametrize("update", VERSIONED)
def test_a_loss_that_writes_to_a_table_is_refused_where_versions_are_kept(update: str) -> None:
    model = made()
    model.table = nn.Embedding(50, 8, sparse=True, max_norm=1.0)
    with pytest.raises(hogwild.ArgumentError, match=r"writes to table\.weight .*max_norm.*update='hogwild'"):
        train(model, update=update)
    assert train(model, update="hogwild").updates == 30
