"""What the model holds of an imported module, and the loss reads there: no model of a worker holds that very object."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import problems
import pytest
from contexts import Told
from torch import Tensor, nn

import hogwild

IMPORTED = """
import functools
from torch import nn
from torch.nn.functional import cross_entropy

class Context:
    last = None

AAA = Context()
CONTEXT = Context()
CALLS = [0]

def alternating(model, batch):
    CALLS[0] += 1
    return (1 + CALLS[0] % 2) * cross_entropy(model(batch[0]), batch[1]) + 0 * len(vars(CONTEXT))

def loss(model, batch):
    own = cross_entropy(model(batch[0]), batch[1])
    return own if CONTEXT.last is None else own + CONTEXT.last

def decorated(function):
    @functools.wraps(function)
    def called(*given):
        return function(*given)
    return called

@decorated
def wrapped(model, batch):
    return cross_entropy(model(batch[0]), batch[1]) + CONTEXT.last

class Called:
    def __call__(self, model, batch):
        return loss(model, batch)

class Layer(nn.Module):
    def forward(self, model, batch):
        own = cross_entropy(model(batch[0]), batch[1])
        return own if CONTEXT.last is None else own + CONTEXT.last
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A module that other programs import, which has a context and a loss that reads it."""
    (tmp_path / "with_context.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("with_context")
    del sys.modules["with_context"]


@pytest.mark.parametrize("kind", ["threads", "processes", "auto"])
@pytest.mark.parametrize("by", ["own", "loss", "wrapped", "Called", "Layer"])
def test_what_the_model_holds_of_a_module_and_the_loss_reads_there_is_refused(imported, kind, by):
    """The loss of every worker reads the module's, and the model of none writes to it."""

    def own(model: nn.Module, batch: Any) -> Tensor:
        value = problems.cross_entropy(model, batch)
        return value if imported.CONTEXT.last is imported.AAA.last else value + imported.CONTEXT.last

    loss = own if by == "own" else getattr(imported, by)
    model = Told(imported.CONTEXT)
    model.constant = imported.AAA
    told = r"holds with_context\.CONTEXT, and leaves there what the loss reads"
    with pytest.raises(hogwild.ArgumentError, match=told):
        problems.train(model, loss=loss() if isinstance(loss, type) else loss, kind=kind, updates=2)
    assert isinstance(imported.CONTEXT, imported.Context)


def test_what_the_loss_of_a_module_does_not_read_is_left_alone(imported):
    """The model leaves what nobody reads."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) + 0 * len(vars(imported.CONTEXT))

    assert problems.train(Told(imported.CONTEXT), loss=loss, kind="threads", updates=2).kind == "threads"


def test_a_loss_of_a_module_that_is_another_at_each_call_is_not_taken_for_one_that_reads_it(imported):
    run = problems.train(Told(imported.CONTEXT), loss=imported.alternating, kind="threads", workers=1, updates=2)
    assert run.kind == "threads"
