"""What a loss computes with that requires a gradient, and that no training of the model will ever step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.autograd.graph import leaf_of, walk
from hogwild.errors import some_of


def parameters_beside(output: Any, known: Collection[int]) -> list[nn.Parameter]:
    """The parameters in the graph of what a loss returned, in order, but for those of the ids that are `known`."""
    losses = output if isinstance(output, list) else [output]
    found: dict[int, nn.Parameter] = {}
    for loss in losses:
        if isinstance(loss, Tensor) and loss.grad_fn is not None:
            leaves = map(leaf_of, walk(loss))
            found |= {id(leaf): leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in known}
    return [*found.values()]


def left_out(loss: Any, parameters: Collection[nn.Parameter], start: Collection[Tensor]) -> str:
    """One line that says so of those parameters, by name where the loss is a module that has them; empty if none, or
    if all are copies of the `start`, near which a penalty keeps the model."""
    if all(any(torch.equal(one, own) for own in start) for one in parameters):
        return ""
    own = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    names = {id(parameter): name for name, parameter in own}
    named = [names.get(id(one), f"one of shape {list(one.shape)}") for one in parameters]
    return (
        f"the loss computes with parameters that are none of the model's, and nobody steps them ({some_of(named)}); "
        f"to train them, make them a part of the model, and else call requires_grad_(False)"
    )
