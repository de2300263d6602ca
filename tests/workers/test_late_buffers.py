"""Buffers that a forward pass makes after the first one, of which each worker has one of its own: told once."""

from __future__ import annotations

from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import SAME_BITS

import hogwild
from hogwild.rules.registry import NAMES

LATE = "1.late: a buffer that a forward pass made after the first one"


class Registers(nn.Module):
    """Makes a buffer of the batch that it sees at an update, and takes it off from then on."""

    def __init__(self, update: int, *, persistent: bool = True, announced: bool = False) -> None:
        super().__init__()
        self.update, self.persistent = update, persistent
        if announced:
            self.register_buffer("late", None, persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if hogwild.worker_info().update >= self.update and getattr(self, "late", None) is None:
            self.register_buffer("late", torch.ones(8), persistent=self.persistent)
        return x if getattr(self, "late", None) is None else x - self.late


def train(layer: nn.Module, **arguments: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))
    problems.train(model, **{"updates": 12, "recheck": 0, **arguments})


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("update", NAMES)
def test_it_is_told_once(update: str, announced: bool, caplog: pytest.LogCaptureFixture) -> None:
    train(Registers(3, announced=announced), update=update, workers=1)  # of two, one may begin at update 3
    assert caplog.text.count(LATE) == len(caplog.records) == 1


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_cache_is_no_state(update: str, caplog: pytest.LogCaptureFixture) -> None:
    train(Registers(3, persistent=False), update=update)
    assert not caplog.records


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.filterwarnings("ignore:the first forward pass makes the buffer")
def test_what_the_first_pass_makes_is_told_before_the_run(update: str, caplog: pytest.LogCaptureFixture) -> None:
    train(Registers(0), update=update)
    assert not caplog.records
