"""Copies of large gradients lie in the same memory at every update, but for those that somebody still has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizers import plain, trained
from torch import Tensor, nn
from torch.optim import Optimizer
from traits import NAMES, OWN_GRADIENTS, SAME_BITS

from hogwild.optim.copies import CopyRoom

PLACES: list[int] = []


class Own(Optimizer):
    """Steps by the sign of the gradient, and keeps nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                if parameter.grad.shape == (4096, 8):
                    PLACES.append(parameter.grad.data_ptr())
                self.step_by(parameter, parameter.grad)

    def step_by(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.sub_(gradient.sign(), alpha=0.01)


class KeepsInState(Own):
    """Steps by the gradient and the one before it, which it keeps as it is given."""

    def step_by(self, parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        before = state.get("before", gradient)
        state["before"] = gradient
        parameter.sub_(gradient + before, alpha=0.05)


class KeepsBeside(Own):
    """Likewise, beside its state, as a view."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.before: dict[tuple[int, ...], Tensor] = {}

    def step_by(self, parameter: Tensor, gradient: Tensor) -> None:
        before = self.before.get(tuple(parameter.shape), gradient.view(-1))
        self.before[tuple(parameter.shape)] = gradient.view(-1)
        parameter.sub_(gradient + before.view_as(gradient), alpha=0.05)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 3))


@pytest.mark.parametrize("norm", [None, 0.5])
@pytest.mark.parametrize("update", NAMES)
def test_the_memory_is_that_of_the_update_before(update: str, norm: float | None) -> None:
    expected = plain(wide(), Own, clip_grad_norm=norm)
    PLACES.clear()
    assert trained(wide(), Own, update=update, kind="threads", clip_grad_norm=norm) == expected
    assert len({*PLACES[-10:]}) == 1, "the first are those of trial steps"


@pytest.mark.parametrize("norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", [KeepsInState, KeepsBeside])
@pytest.mark.parametrize("update", OWN_GRADIENTS)
def test_an_optimizer_that_keeps_a_gradient_has_the_bits_of_the_plain_loop(
    update: str, optimizer: Callable[..., Optimizer], norm: float | None
) -> None:
    if optimizer is KeepsBeside and update in SAME_BITS:
        pytest.skip("others refuse what it keeps where nobody sees it")
    expected = plain(wide(), optimizer, clip_grad_norm=norm)
    assert trained(wide(), optimizer, update=update, clip_grad_norm=norm) == expected


def test_what_somebody_has_is_not_written_over() -> None:
    room, gradient = CopyRoom(), torch.randn(300, 100)
    for keep in (
        lambda copy: copy,
        lambda copy: copy[3:].T,
        lambda copy: copy.detach().view(torch.int32),
        lambda copy: copy.numpy()[1:],
        lambda copy: torch.from_numpy(copy.numpy()),
        lambda copy: copy.untyped_storage(),
    ):
        place = room.copy_of(gradient, gradient.stride()).data_ptr()
        assert room.copy_of(gradient, gradient.stride()).data_ptr() == place
        kept = keep(room.copy_of(gradient, gradient.stride()))
        assert room.copy_of(-gradient, gradient.stride()).data_ptr() != place
        del kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("stride", [(100, 1), (1, 300), (128, 1)])
def test_a_copy_has_the_form_that_is_asked_for(dtype: torch.dtype, stride: tuple[int, int]) -> None:
    room = CopyRoom()
    for rows in (300, 300, 400, 0, 1):
        gradient = torch.randn(rows, 100).to(dtype)
        if rows == 400 and stride == (1, 300):
            stride = (1, 400)
        copy = room.copy_of(gradient, stride)
        assert torch.equal(copy, gradient) and copy.dtype is dtype and copy.stride() == stride
        assert copy.data_ptr() % 64 == 0
    sparse = torch.eye(300).to_sparse()
    assert torch.equal(room.copy_of(sparse, (300, 1)), torch.eye(300))
