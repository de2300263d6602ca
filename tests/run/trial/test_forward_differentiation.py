"""A loss that differentiates forward: torch has one stack of its levels for all threads."""

from __future__ import annotations

import re
from typing import Any

import problems
import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from traits import OTHER_BITS, SAME_BITS

import hogwild
from hogwild.run.trial.kept_by_loss import LEVELS

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


def by_jvp(model: nn.Module, batch: Any) -> torch.Tensor:
    return problems.cross_entropy(model, batch) + jvp(model, batch[:1], (torch.ones_like(batch[0]),))[1].square().mean()


@pytest.mark.parametrize("update", SAME_BITS)
def test_processes_have_the_bits_of_one(update):
    one, two = (
        problems.train(loss=by_jvp, update=update, kind="auto", workers=workers, updates=12) for workers in (1, 2)
    )
    assert one.digest == two.digest and two.kind == "processes"


def along_parameters() -> Any:
    """A loss that has the derivative along the parameters, which it puts into a module beside the model."""
    template = problems.mlp()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        own = {name: parameter.detach() for name, parameter in model.named_parameters()}
        slope = jvp(lambda weights: functional_call(template, weights, batch[:1]), (own,), (own,))[1]
        return problems.cross_entropy(model, batch) + slope.square().mean()

    return loss


@pytest.mark.parametrize("loss", [by_jvp, along_parameters()], ids=["along the data", "along the parameters"])
@pytest.mark.parametrize("update", OTHER_BITS)
def test_threads_are_refused_where_they_are_several(update, loss):
    """Two at once fail with an error of torch's, or by a segmentation fault."""
    with pytest.raises(hogwild.ArgumentError, match=re.escape(f"threads share {LEVELS}, where two at once fail")):
        problems.train(loss=loss, update=update, kind="threads", workers=2, updates=4)
    assert problems.train(loss=loss, update=update, kind="threads", workers=1, updates=4).updates == 4
