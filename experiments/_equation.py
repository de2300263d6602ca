"""A differential equation fitted by a network: u'' + 0.5 u' + 4 u = 0, u(0) = 1, u'(0) = 0.

The derivatives with respect to the input t come from `torch.autograd.grad(create_graph=True)`, since the loss is
made of them; the gradient with respect to the parameters, from either API.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ._common import BLUE, GREY, ORANGE, RED, figure, save

Gradients = Callable[[Tensor, list[nn.Parameter]], list[Tensor]]


def by_grad(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """The gradients, returned."""
    return list(torch.autograd.grad(loss, parameters))


def by_backward(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """The gradients, read from `.grad`, which was cleared before."""
    for one in parameters:
        one.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    return [one.grad for one in parameters if one.grad is not None]


T_END, POINTS, STEPS, LEARNING_RATE = 3.0, 64, 2000, 1e-2
DAMPING, STIFFNESS = 0.5, 4.0


class Trial(nn.Module):
    """u(t) = 1 + t² N(t), which has u(0) = 1 and u'(0) = 0 whatever the network N is (Lagaris et al. 1998)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t: Tensor) -> Tensor:
        """u at times t, both of shape [B, 1]."""
        u: Tensor = 1 + t * t * self.network(2 * t / T_END - 1)
        return u


def residual_loss(model: nn.Module, t: Tensor) -> Tensor:
    """The mean square of u'' + 0.5 u' + 4 u at times t of shape [B, 1]; zero for an exact solution."""
    t = t.detach().requires_grad_(True)
    u = model(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    loss: Tensor = (ddu + DAMPING * du + STIFFNESS * u).square().mean()
    return loss


def exact(t: Tensor) -> Tensor:
    """The solution with u(0) = 1, u'(0) = 0: a damped oscillation."""
    decay = DAMPING / 2
    omega = math.sqrt(STIFFNESS - decay**2)
    return torch.exp(-decay * t) * (torch.cos(omega * t) + decay / omega * torch.sin(omega * t))


def cosine(step: int, steps: int = STEPS) -> float:
    """The factor on the learning rate: from 1 down to 0.001."""
    return 0.001 + 0.999 * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass
class Fit:
    """A fitted model, its loss at each step, and its largest error on a fine grid."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    error: float = math.nan


def fit(start: nn.Module, gradients: Gradients, steps: int) -> Fit:
    """Adam on all points at once, with the gradients of either API."""
    fitted = Fit(deepcopy(start))
    parameters = list(fitted.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(cosine, steps=steps))
    t = torch.linspace(0, T_END, POINTS).unsqueeze(1)
    for _ in range(steps):
        loss = residual_loss(fitted.model, t)
        fitted.losses.append(loss.item())
        for one, grad in zip(parameters, gradients(loss, parameters), strict=True):
            one.grad = grad
        optimizer.step()
        schedule.step()
    fine = torch.linspace(0, T_END, 1001).unsqueeze(1)
    with torch.no_grad():
        fitted.error = float((fitted.model(fine) - exact(fine)).abs().max())
    return fitted


def plot(fitted: Fit, path: Path) -> Path:
    title = f"u'' + 0.5 u' + 4 u = 0 by a network of {_size(fitted.model):,} parameters, Adam, {STEPS:,} steps"
    made, (left, middle, right) = figure(13, 4.0, 3, title)
    t = torch.linspace(0, T_END, 401).unsqueeze(1)
    with torch.no_grad():
        u = fitted.model(t)
    left.plot(t, exact(t), color=GREY, lw=4, alpha=0.5, label="exact")
    left.plot(t, u, color=BLUE, lw=1.5, label="network")
    left.set_ylabel("u")
    middle.plot(t, (u - exact(t)).abs().clamp_min(1e-8), color=ORANGE, lw=1.2, label="|network − exact|")
    middle.axhline(1e-2, color=RED, lw=1, ls="--", label="allowed: 1e-2")
    middle.set_ylabel("absolute error of u")
    middle.set_yscale("log")
    right.plot(fitted.losses, color=BLUE, lw=0.8, label="trained with grad()")
    right.set_ylabel("mean squared residual (u per time²)²")
    right.set_yscale("log")
    right.set_xlabel("step")
    for axes in (left, middle):
        axes.set_xlabel("time t")
    for axes in (left, middle, right):
        axes.legend(fontsize=8)
    return save(made, path)


def _size(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())
