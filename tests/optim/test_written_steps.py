"""The steps that are written out leave torch's bits, in place and from one place into another."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.optim import kernels
from hogwild.optim.kernels import least_square, written_step
from hogwild.optim.step_form import ROOMS, Rooms

WRITTEN: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam with decay": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adam that forgets the squares first": partial(torch.optim.Adam, lr=0.01, betas=(0.9, 0.5)),
    "adam without momentum": partial(torch.optim.Adam, lr=0.01, betas=(0.0, 0.99)),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
    "adagrad with decay": partial(torch.optim.Adagrad, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
    "rmsprop with momentum": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, weight_decay=0.1),
}
OURS_FOR_NONE: dict[str, Any] = {
    "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "maximizing": partial(torch.optim.Adam, maximize=True),
    "fused": partial(torch.optim.Adam, fused=True),
    "lr as a tensor": partial(torch.optim.Adam, lr=torch.tensor(0.01)),
    "centred": partial(torch.optim.RMSprop, centered=True),
    "maximizing adagrad": partial(torch.optim.Adagrad, maximize=True),
    "adamax": torch.optim.Adamax,
}
SIZE, STEPS = 1003, 40
by_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])


def random_gradients(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [1.0, 0.0, 1e-2, 1.0, 1e3 if dtype is not torch.float16 else 1.0]
    return [sizes[i % 5] * torch.randn(SIZE, generator=generator).to(dtype) for i in range(STEPS)]


def growing_gradients(dtype: torch.dtype) -> list[Tensor]:
    """The serial run whose mean is the largest beside its squares: v = m² / K, but for the beginning."""
    start = torch.logspace(-8, -4, SIZE, dtype=torch.float64)
    return [(start * (0.999 / 0.9) ** i).to(dtype) for i in range(120)]


def stepped(make: Any, gradients: list[Tensor], how: str) -> tuple[list[Tensor], list[Tensor]]:
    """(what torch leaves, what the written step leaves): the parameter, and its state by key."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(SIZE).to(gradients[0].dtype))
    value, other = parameter.detach().clone(), torch.empty_like(parameter)
    optimizer: Optimizer = make([parameter])
    state = {key: kept.clone() for key, kept in optimizer.state.get(parameter, {}).items()}
    step, rooms = written_step(optimizer), Rooms([torch.empty_like(value) for _ in range(ROOMS)], how == "racing")
    assert step is not None
    for number, gradient in enumerate(gradients):
        parameter.grad = gradient.clone()
        optimizer.step()
        if not state:
            state = {key: torch.zeros_like(kept) for key, kept in optimizer.state[parameter].items()}
        options, begun = optimizer.param_groups[0], number > 0
        if how != "beside":
            step(options, value, gradient.clone(), state, state, value, rooms, begun)
        else:
            after = {key: torch.empty_like(kept) for key, kept in state.items()}
            step(options, value, gradient.clone(), state, after, other, rooms, begun)
            value, other, state = other, value, after
    kept = optimizer.state[parameter]
    return [parameter.detach(), *kept.values()], [value, *(state[key] for key in kept)]


@pytest.mark.parametrize("piece", [64, 1 << 18])
@pytest.mark.parametrize("how", ["in place", "racing", "beside"])
@by_dtype
@pytest.mark.parametrize("name", WRITTEN)
def test_the_bits_are_those_of_torch(name, dtype, how, piece, monkeypatch):
    monkeypatch.setattr(kernels, "_PIECE", piece)
    expected, found = stepped(WRITTEN[name], random_gradients(dtype), how)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@by_dtype
def test_moments_of_a_serial_run_are_never_raised(dtype):
    """Not even where v is as small beside m as it can be serially."""
    expected, found = stepped(WRITTEN["adam"], growing_gradients(dtype), "racing")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if dtype is torch.float64:
        _, _, mean, square = found
        share, _ = least_square(0.9, 0.999, dtype)
        assert (square / mean**2).max() < 1.01 * share, "it is the worst case"


@pytest.mark.parametrize("name", OURS_FOR_NONE)
def test_with_other_options_it_is_torchs_own_step(name):
    assert written_step(OURS_FOR_NONE[name]([nn.Parameter(torch.zeros(3))])) is None
