"""Small trainings by a loop of one's own, and by a loss, for tests of what either does wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from traits import NAMES

import hogwild

EVERY = pytest.mark.parametrize("update", NAMES)
INPUT, TARGET = torch.ones(4, 3), torch.zeros(4, 2)


def launched(work: Callable[[Any], None], model: nn.Module | None = None, **settings: Any) -> hogwild.Run:
    defaults = {"updates": 6, "update": "ordered", "kind": "threads", "workers": 1}
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return hogwild.launch(work, model or nn.Linear(3, 2), optimizer=optimizer, **defaults | settings)


def gradients(replica: nn.Module) -> tuple[list[Tensor], float]:
    loss = nn.functional.mse_loss(replica(INPUT), TARGET)
    return [*torch.autograd.grad(loss, [p for p in replica.parameters() if p.requires_grad])], loss.item()


def trained(model: nn.Module, loss: Callable[[nn.Module, Any], Any], **settings: Any) -> hogwild.Run:
    data = torch.randn(32, 3), torch.randn(32, 2)
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return hogwild.train(model, data, loss, optimizer=optimizer, **{"batch_size": 4, "updates": 8} | settings)


def squared(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])
