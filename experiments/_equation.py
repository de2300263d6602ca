"""A differential equation fitted by a network: u'' + 0.5 u' + 4 u = 0, u(0) = 1, u'(0) = 0.

The derivatives with respect to the input t come from `torch.autograd.grad(create_graph=True)`, since the loss is
made of them; the gradient with respect to the parameters, from either API, in a loop by hand or by workers.
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

import hogwild
from hogwild.experiment import Claim
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, RED, row_of_axes, save_figure

from ._common import crew, same_bits, smooth

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


class DryRun(nn.Module):
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
    fitted.error = error(fitted.model)
    return fitted


def error(model: nn.Module) -> float:
    """The largest error of u on a fine grid."""
    fine = torch.linspace(0, T_END, 1001).unsqueeze(1)
    with torch.no_grad():
        return float((model(fine) - exact(fine)).abs().max())


class Points:
    """A source whose every batch is all points in time, of shape [64, 1]."""

    def batch(self, update: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """From 0 to the end."""
        return torch.linspace(0, T_END, POINTS).unsqueeze(1)


@dataclass(frozen=True)
class Method:
    """Adam's settings, and the norm that gradients are clipped to. The defaults are those of the loop by hand."""

    lr: float = LEARNING_RATE
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None


GENTLE = Method(lr=LEARNING_RATE / 2, betas=(0.8, 0.99), clip=0.1)
"""What bears a staleness of 1: half the learning rate, less momentum, and no gradient long enough to go far astray."""


@dataclass(frozen=True)
class Crew:
    """Who trains under `ordered`, and by which API: what must not change a bit of the result."""

    gradient: str
    kind: str
    workers: int

    def __str__(self) -> str:
        return f"{self.gradient}() by {crew(self.kind, self.workers)}"


ALONE = Crew("grad", "threads", 1)
CREWS = (ALONE, Crew("grad", "processes", 2), Crew("backward", "threads", 2), Crew("backward", "processes", 2))
MORE_CREWS = (Crew("grad", "processes", 1), Crew("grad", "threads", 2), Crew("backward", "processes", 1))
"""Compared with each other; the second also, at length."""


def fit_by(who: Crew, start: nn.Module, steps: int, staleness: int, method: Method) -> Fit:
    """The same fit by workers on one model, through `hogwild.train`."""
    fitted = Fit(deepcopy(start))
    run = hogwild.train(
        fitted.model,
        Points(),
        residual_loss,
        optimizer=partial(torch.optim.Adam, lr=method.lr, betas=method.betas),
        update="ordered",
        staleness=staleness,
        compensation="none",
        gradient=who.gradient,
        kind=who.kind,
        workers=who.workers,
        updates=steps,
        clip_grad_norm=method.clip,
        lr_schedule=partial(cosine, steps=steps),
    )
    fitted.losses, fitted.error = run.losses.tolist(), error(fitted.model)
    return fitted


@dataclass(frozen=True)
class ByWorkers:
    """Fits under `ordered`: without staleness, with it and the settings of the loop by hand, and by each crew."""

    fresh: Fit
    stale: Fit
    crews: dict[Crew, Fit]


def fit_by_workers(start: nn.Module, crews: tuple[Crew, ...], steps: int) -> ByWorkers:
    """All of them, one after another."""
    return ByWorkers(
        fit_by(ALONE, start, steps, 0, Method()),
        fit_by(ALONE, start, steps, 1, Method()),
        {who: fit_by(who, start, steps, 1, GENTLE) for who in crews},
    )


def by_workers(hand: Fit, found: ByWorkers) -> list[Claim]:
    """Workers in order fit the equation, and their number, kind and API leave no trace."""
    as_hand = same_bits(hand.model.parameters(), found.fresh.model.parameters())
    fits = list(found.crews.values())
    equal = [same_bits(fits[0].model.parameters(), one.model.parameters()) for one in fits]
    worst = max(one.error for one in fits)
    return [
        Claim(
            "fitted by a worker (ordered, staleness 0): the bits of the loop written by hand",
            f"{'same' if as_hand else 'other'} bits after {len(found.fresh.losses):,} steps",
            as_hand,
        ),
        Claim(
            "fitted by 1 and 2 workers (ordered, staleness 1), with grad() and with backward(): the same bits",
            f"{'same' if all(equal) else 'other'} bits from {', '.join(map(str, found.crews))}",
            all(equal) and {1, 2} <= {who.workers for who in found.crews},
        ),
        Claim("and an error below 1e-2", f"at most {worst:.1e}", worst < 1e-2),
        Claim(
            "the learning rate and momentum of the loop by hand would do at staleness 1: error below 1e-2",
            f"at most {found.stale.error:.1e}: the rows above have lr / 2, β₁ 0.8, β₂ 0.99, gradients clipped to 0.1",
            found.stale.error < 1e-2,
            expected=False,
        ),
    ]


def plot(fitted: Fit, found: ByWorkers, path: Path) -> Path:
    """The fit by hand against the exact solution, its error, and all losses."""
    title = f"u'' + 0.5 u' + 4 u = 0 by a network of {_size(fitted.model):,} parameters, Adam, {STEPS:,} steps"
    made, (left, middle, right) = row_of_axes(13, 4.0, 3, title)
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
    gentle = next(iter(found.crews.values()))
    right.plot(*smooth(found.stale.losses), color=RED, lw=1.5, label="ordered, staleness 1: the same settings")
    right.plot(*smooth(gentle.losses), color=GREEN, lw=1.5, label="ordered, staleness 1: gentler settings")
    right.plot(*smooth(fitted.losses), color=BLUE, lw=1.5, label="by hand; ordered, staleness 0")
    right.set_ylabel("mean squared residual (u per time²)²")
    right.set_yscale("log")
    right.set_xlabel("step (each point the mean of 20)")
    for axes in (left, middle):
        axes.set_xlabel("time t")
    for axes in (left, middle, right):
        axes.legend(fontsize=8)
    return save_figure(made, path)


def _size(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())
