"""What `evaluate` may do to the model, and what it and workers may call their metrics."""

from __future__ import annotations

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS

import hogwild


class Remembers(nn.Module):
    """Its forward pass puts a view of what it is given in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.last = x[0].detach()
        return self.layer(x)


def test_a_buffer_that_evaluate_replaces_is_none_of_what_it_was_replaced_by():
    test, model = torch.full((4, 8), 7.0), Remembers()
    buffer = model.last

    def evaluate(own: nn.Module) -> dict[str, float]:
        with torch.inference_mode():
            own(test)
        return {"ok": 1.0}

    problems.train(model, update="ordered", evaluate=evaluate, evaluate_every=3, updates=12)
    assert torch.equal(test, torch.full((4, 8), 7.0))
    assert model.last is buffer and not torch.equal(buffer, test[0])


class KeepsItsNorm(nn.Sequential):
    """`train()` of many a frozen backbone: it returns nothing."""

    def train(self, mode: bool = True) -> None:
        super().train(mode)


def test_a_model_whose_train_returns_nothing_is_evaluated():
    seen = []
    problems.train(KeepsItsNorm(nn.Linear(8, 3)), evaluate=lambda model: seen.append(model) or {}, updates=3)
    assert seen and all(isinstance(model, KeepsItsNorm) for model in seen)


@pytest.mark.parametrize("name", ["update", "seconds"])
def test_a_metric_is_not_called_what_every_row_has(name):
    with pytest.raises(hogwild.ArgumentError, match=f"evaluate returned a metric '{name}', which every row has"):
        problems.train(evaluate=lambda model: {name: 1.0}, updates=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["update", "batch", "worker"])
def test_what_a_worker_logs_is_not_called_so_either(name, kind):
    def loss(model, batch):
        hogwild.worker_info().log(**{name: 1.0})
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.ArgumentError, match=f"log was given '{name}', which every row has"):
        problems.train(loss=loss, kind=kind, updates=3)
