"""The smallest change there is: one unit in the last place of one weight (Summers & Dinneen 2021, arXiv 2103.04514)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ArgumentError
from hogwild.rules.base import autograd_gradients
from hogwild.schedule import Source, own_copy
from hogwild.seeding import mix, preserved_generators, seed_update

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def most_sensitive(
    model: nn.Module, loss: Callable[[nn.Module, Any], Any], source: Source, seed: int
) -> tuple[Tensor, int]:
    """The weight with the largest gradient on batch 0: (its parameter, its place in the flattened parameter).

    A weight that no sample reaches would keep its changed bit to itself, and show no chaos where there is some.

    Raises:
        ArgumentError: no floating-point weight has a gradient.
    """
    named = [p for p in model.parameters() if p.requires_grad and p.dtype.is_floating_point]
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with preserved_generators():
        seed_update(seed, 0)
        batch = own_copy(source).batch(0, torch.Generator().manual_seed(mix(seed, 0)))
        _, gradients = autograd_gradients(loss(model, batch), named)
    with torch.no_grad():
        for name, value in model.named_buffers():
            value.copy_(buffers[name])
    best: tuple[float, Tensor, int] | None = None
    for parameter, gradient in zip(named, gradients, strict=True):
        if gradient is None or gradient.numel() == 0:
            continue
        sizes = (gradient.to_dense() if gradient.is_sparse else gradient).abs().reshape(-1)
        place = int(sizes.argmax())
        if best is None or sizes[place].item() > best[0]:
            best = (sizes[place].item(), parameter, place)
    if best is None:
        raise ArgumentError("no weight has a gradient on batch 0; there is none to add one ULP to")
    return best[1], best[2]


@torch.no_grad()
def add_one_ulp(parameter: Tensor, place: int) -> None:
    """Move one weight to the next float away from zero: add one to its bits, read as an integer."""
    flat = parameter.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS[parameter.element_size()]).clone()
    bits[place] += 1
    parameter.copy_(bits.view(parameter.dtype).view(parameter.shape))
