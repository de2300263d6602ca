"""Parameters of a loss that are none of the model's are trained by nobody, and a warning says so."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS

NONE_OF_THE_MODEL = r"^the loss computes with parameters that are none of the model's, and nobody steps them \({}\)"


class Weighed(nn.Module):
    """A criterion that is to learn how certain it is."""

    def __init__(self) -> None:
        super().__init__()
        self.log_sigma = nn.Parameter(torch.zeros(()))

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) * torch.exp(-self.log_sigma) + self.log_sigma


@pytest.mark.parametrize("gradient", ["grad", "backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_criterion_with_weights_of_its_own_is_told(kind, gradient):
    criterion = Weighed()
    with pytest.warns(UserWarning, match=NONE_OF_THE_MODEL.format("log_sigma")):
        problems.train(loss=criterion, kind=kind, gradient=gradient, updates=4)
    assert criterion.log_sigma == 0


def test_it_is_told_by_its_shape_where_a_function_holds_it():
    head = nn.Linear(3, 3, bias=False)

    def loss(model: nn.Module, batch: Any) -> list[Tensor]:
        return [nn.functional.cross_entropy(head(model(batch[0])), batch[1]), model(batch[0]).square().mean()]

    with pytest.warns(UserWarning, match=NONE_OF_THE_MODEL.format(r"one of shape \[3, 3\]")):
        problems.train(loss=loss, updates=4)


def near(start: nn.Module) -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        return problems.cross_entropy(model, batch) + sum((p - q).square().sum() for p, q in pairs)

    return loss


def punished(model: nn.Module, batch: Any) -> Tensor:
    x = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return problems.cross_entropy(model, batch) + slope.square().mean()


def with_a_critic(critic: nn.Linear) -> Any:
    """Which the loss trains itself."""
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        optimizer.zero_grad()
        critic(model(batch[0]).detach()).square().mean().backward()
        optimizer.step()
        return problems.cross_entropy(model, batch) - critic(model(batch[0])).mean()

    return loss


def disturbed(model: nn.Module, batch: Any) -> Tensor:
    """By a parameter that is made anew for each batch."""
    noise = nn.Parameter(torch.zeros_like(batch[0]))
    return nn.functional.cross_entropy(model(batch[0] + noise), batch[1])


def test_others_are_not():
    model = problems.mlp()
    frozen = Weighed().requires_grad_(requires_grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (near(copy.deepcopy(model)), punished, frozen, disturbed, with_a_critic(nn.Linear(3, 1))):
            problems.train(copy.deepcopy(model), loss=loss, updates=4)
