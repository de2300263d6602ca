"""TorchScript functions compute the same bits at the first call and at the last, whoever calls them."""

from __future__ import annotations

import warnings
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS, SAME_BITS

import hogwild
from hogwild.testing import Fault, Hook, PlantedFault, planted

with warnings.catch_warnings():
    # TorchScript as a whole is deprecated; libraries still have it.
    warnings.filterwarnings("ignore", r"`torch\.jit\.script(_method)?` is (deprecated|not supported)")

    @torch.jit.script
    def gated(x: Tensor, scale: float) -> Tensor:
        """Its optimized form has other bits than the first two calls."""
        y = torch.tanh(nn.functional.softplus(x)) * scale
        return x * y / (1.0 + torch.exp(-x)) + torch.log(1 + x * x)


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return gated(x, 1.3)


class Written(nn.Module):
    """The same in Python."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(nn.functional.softplus(x)) * 1.3
        return x * y / (1.0 + torch.exp(-x)) + torch.log(1 + x * x)


def model(layer: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 33), layer(), nn.Linear(33, 3))


def train(**arguments: Any) -> hogwild.Run:
    layer = arguments.pop("layer", Gated)
    return problems.train(model(layer), staleness=3, micro_batches=4, **arguments)


@pytest.fixture
def optimized():
    """The caller has used the function: its optimized form is there, and so it is afterwards."""
    run = model(Gated)
    for _ in range(4):
        run(problems.data()[0]).sum().backward()
    return run


@pytest.mark.parametrize("update", SAME_BITS)
def test_one_digest_at_any_number_of_workers_of_any_kind(update):
    digests = {train(update=update, workers=n, kind=kind).digest for n in (1, 2) for kind in KINDS}
    assert digests == {train(update=update, workers=1, layer=Written).digest}, "as its Python would"


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_the_caller_has_used_already(kind, optimized):
    assert train(update="ordered", kind=kind).digest == train(update="ordered", layer=Written).digest


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_kill_changes_nothing(update):
    fault = PlantedFault(Fault.KILL, Hook.COMMITTING, 20)
    with planted(fault):
        killed = train(update=update, kind="processes")
    assert fault.fired and len(killed.failures) == 1
    assert killed.digest == train(update=update, workers=1, layer=Written).digest


def test_an_evaluation_beside_the_threads_changes_nothing():
    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.enable_grad():
            for _ in range(3):
                model(problems.data()[0]).sum().backward()
        model.zero_grad()
        return {"zero": 0.0}

    run = train(update="ordered", evaluate=evaluate, evaluate_every=2)
    assert run.digest == train(update="ordered", layer=Written).digest


def test_a_run_leaves_the_switch_as_it_was():
    assert torch._C._get_graph_executor_optimize()
    train(update="ordered", updates=2)
    assert torch._C._get_graph_executor_optimize()
