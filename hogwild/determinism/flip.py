"""The smallest change there is: one unit in the last place of one weight (Summers & Dinneen 2021, arXiv 2103.04514)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.data.sources import Source, own_copy
from hogwild.errors import ArgumentError
from hogwild.kernels.kernel import Kernel
from hogwild.model.computed import copy_of_model
from hogwild.rules.gradients import gradients_of
from hogwild.run.trial.at_batch import at_batch

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def most_sensitive(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Any] | None,
    source: Source,
    seed: int,
    number: int = 0,
    *,
    by: str = "grad",
) -> tuple[Tensor, int]:
    """The weight of which one ULP changes the loss of batch 0 most: (its parameter, its place when flattened).

    `number` 0 is the most sensitive, 1 the next, and so on; `by` is how gradients are taken, as a rule says. A weight
    that no sample reaches would keep its changed bit to itself, and show no chaos where there is some. Biases and other
    vectors are left out where there are matrices: the last bit of a small value that grows is soon rounded away.

    Raises:
        ArgumentError: no floating-point weight has a gradient.
    """
    every = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.dtype.is_floating_point and p.numel()]
    named = [(name, parameter) for name, parameter in every if parameter.dim() > 1] or every
    if not named:
        raise ArgumentError("the model has no real weight to add one ULP to")
    gradients = first_gradients(model, loss, source, seed, by)
    with torch.no_grad():
        found = [
            (effect, which, place)
            for which, (name, parameter) in enumerate(named)
            if (gradient := gradients[name]) is not None
            for effect, place in _effects(parameter, gradient, number + 1)
        ]
    if len(found) <= number:
        raise ArgumentError("too few weights have a gradient on batch 0; there is none to add one ULP to")
    _, which, place = sorted(found, key=lambda one: (-one[0], one[1], one[2]))[number]
    return named[which][1], place


def first_gradients(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any] | None, source: Source, seed: int, by: str = "grad"
) -> dict[str, Tensor | None]:
    """The gradients of batch 0 by parameter name, as a worker would compute them, or what a kernel takes away from its
    tables; on a copy, so the model stays as it is."""
    apart = copy_of_model(model)
    if loss is None:
        return _first_differences(apart, source, seed)
    trained = {name: parameter for name, parameter in apart.named_parameters() if parameter.requires_grad}
    with at_batch(seed, workers=1) as info:
        batch = own_copy(source).batch(0, info.generator)
        _, gradients = gradients_of(loss(apart, batch), list(trained.values()), list(trained), by)
    return dict(zip(trained, gradients, strict=True))


def _first_differences(model: nn.Module, kernel: Source, seed: int) -> dict[str, Tensor | None]:
    assert isinstance(kernel, Kernel)
    tables = kernel.parameters_in(model)
    before = {name: table.detach().clone() for name, table in tables.items()}
    with at_batch(seed, workers=1) as info:
        arrays = {name: table.detach().numpy() for name, table in tables.items()}
        kernel.step(arrays, kernel.batch(0, info.generator), kernel.lr * kernel.schedule(0.0))
    return {
        name: before[name] - parameter.detach() if name in tables else None
        for name, parameter in model.named_parameters()
    }


def _effects(parameter: Tensor, gradient: Tensor, most: int) -> list[tuple[float, int]]:
    """(|gradient| × one ULP, place) of the values of a parameter with the largest such product."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    spacing = (torch.nextafter(parameter.abs().float(), torch.tensor(torch.inf)) - parameter.abs().float()).double()
    products = (dense.abs().double() * spacing).reshape(-1)
    top = products.topk(min(most, len(products)))
    return [(e, p) for e, p in zip(top.values.tolist(), top.indices.tolist(), strict=True) if e > 0]


@torch.no_grad()
def add_one_ulp(parameter: Tensor, place: int) -> None:
    """Move one weight to the next float away from zero: add one to its bits, read as an integer."""
    flat = parameter.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS[parameter.element_size()]).clone()
    bits[place] += 1
    parameter.copy_(bits.view(parameter.dtype).view(parameter.shape))
