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


@pytest.mark.parametrize("how", [nn.Module.double, nn.Module.half, lambda model: model.to(torch.bfloat16)])
def test_a_model_that_evaluate_casts_is_trained_as_it_was(how):
    def evaluate(own: nn.Module) -> dict[str, float]:
        return {"bytes": next(how(own).parameters()).element_size()}

    settings = {"update": "ordered", "evaluate_every": 3, "updates": 12}
    model = problems.mlp()
    run = problems.train(model, evaluate=evaluate, **settings)
    assert run.digest == problems.train(problems.mlp(), **settings).digest == hogwild.digest(model)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_average_is_evaluated_with_the_buffers_of_its_version():
    def evaluate(own: nn.Module) -> dict[str, float]:
        norm = own[1]
        batches = int(norm.num_batches_tracked)
        own.train()(problems.data()[0])
        return {"batches": batches}

    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    run = problems.train(model, update="ordered", evaluate=evaluate, evaluate_every=3, updates=12, ema=0.9)
    assert [row["ema_batches"] for row in run.evaluations] == [row["batches"] for row in run.evaluations]


@pytest.mark.parametrize(
    ("value", "form"),
    [(None, "None"), ([0.5], r"\[0\.5\]"), ("high", "'high'"), (torch.ones(2), r"a tensor of shape \[2\]")],
)
def test_a_metric_that_is_no_number_is_named(value, form):
    with pytest.raises(hogwild.ArgumentError, match=f"evaluate returned the metric 'accuracy' as {form}; it must be"):
        problems.train(evaluate=lambda model: {"accuracy": value}, updates=3)


def test_a_metric_is_not_called_as_one_of_the_moving_average_is():
    def evaluate(model):
        return {"a": 1.0, "ema_a": 2.0}

    with pytest.raises(hogwild.ArgumentError, match="evaluate returned a metric 'ema_a', as one of the moving average"):
        problems.train(evaluate=evaluate, updates=3, ema=0.9)
    assert problems.train(evaluate=evaluate, updates=3).metrics["ema_a"] == 2.0


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
