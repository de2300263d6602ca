"""What the staleness study trains, and how: a setting, its accuracy over seeds, and the same loop written by hand."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hogwild import Run, Schedule, digest, train
from hogwild.run.figures import GREY

from ._common import untold
from .digits import Batch, Held, loss, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH_SIZE = 16
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "ReLU": nn.ReLU}


@dataclass(frozen=True)
class Setting:
    """An optimizer, its learning rate and momentum (β₁ of Adam), the activation of the network it trains, and what is
    done about staleness."""

    method: str
    lr: float
    momentum: float = 0.0
    activation: str = "tanh"
    compensation: str = "none"

    @property
    def step(self) -> float:
        """lr / (1 − momentum): how far SGD goes in the end for one gradient that is applied once."""
        return self.lr / (1 - self.momentum)

    def optimizer(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """The optimizer, by torch's own unfused arithmetic."""
        if self.method == "Adam":
            return torch.optim.Adam(list(parameters), lr=self.lr, betas=(self.momentum, 0.999))
        return torch.optim.SGD(list(parameters), lr=self.lr, momentum=self.momentum)

    def network(self, seed: int) -> nn.Module:
        """An MLP 64-32-10 for images of shape [B, 1, 8, 8], initialised from the seed; 2,410 parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Flatten(), nn.Linear(64, 32), ACTIVATIONS[self.activation](), nn.Linear(32, 10)
            ).train()

    @property
    def compensated(self) -> Setting:
        """The same with `compensation="auto"`."""
        return replace(self, compensation="auto")

    def divided(self, by: float) -> Setting:
        """The same with a learning rate divided by `by`."""
        return replace(self, lr=self.lr / by)

    def with_implicit_momentum_of(self, tau: int) -> Setting:
        """The same with a momentum μ' for which 1 − μ' = (1 − μ)(τ + 1), or none where that is over 1.

        A queue of τ + 1 gradients acts as a momentum of 1 − 1 / (τ + 1) (Mitliagkas et al. 2016, arXiv 1605.09774);
        what is left of the momentum that was set is what makes up the same product of 1 − momentum.
        """
        return replace(self, momentum=round(max(0.0, 1 - (1 - self.momentum) * (tau + 1)), 6))

    def __str__(self) -> str:
        end = ", compensated" if self.compensation != "none" else ""
        if self.method == "Adam":
            return f"Adam {self.lr:g}" + (f", β₁ {self.momentum:g}" if self.momentum != 0.9 else "") + end
        return f"SGD {self.lr:g}" + (f", momentum {self.momentum:g}" if self.momentum else "") + end


@dataclass(frozen=True)
class Cell:
    """One setting at one staleness: for each seed the held-out accuracy and the digest."""

    setting: Setting
    tau: int
    accuracies: tuple[float, ...]
    digests: tuple[str, ...]

    @property
    def median(self) -> float:
        """The median accuracy over the seeds."""
        return statistics.median(self.accuracies)

    @property
    def worst(self) -> float:
        """The accuracy of the worst seed."""
        return min(self.accuracies)

    @property
    def best(self) -> float:
        """The accuracy of the best seed."""
        return max(self.accuracies)

    def __str__(self) -> str:
        if len(self.accuracies) == 1:
            return short(self.median)
        return f"{short(self.median)} [{short(self.worst)}–{short(self.best)}]"


def short(accuracy: float) -> str:
    """Three decimals without the leading zero."""
    return f"{accuracy:.3f}".removeprefix("0")


def accuracy_axis(axes: Axes, *, labelled: bool) -> None:
    """Errors on a reversed log scale, labelled as accuracy, so that .97 and .98 can be told apart."""
    shown = (0.1, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
    axes.set_yscale("log")
    axes.set_ylim(1.0, 0.01)
    axes.set_yticks([1 - one for one in shown], [short(one).rstrip("0") if labelled else "" for one in shown])
    axes.set_yticks([], minor=True)
    axes.axhline(0.9, color=GREY, linewidth=1, linestyle=":")
    if labelled:
        axes.set_ylabel("accuracy on 297 held-out digits (median, range)")
        axes.annotate(
            "guessing",
            (0.98, 0.9),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=GREY,
        )


@dataclass(frozen=True)
class Bench:
    """Where settings are trained: the digits, the seeds and the length; no cell is computed twice."""

    seeds: tuple[int, ...]
    delays: tuple[int, ...] = (0, 1, 3, 7, 15)
    epochs: int = 15
    cells: dict[tuple[Setting, int], Cell] = field(default_factory=dict)

    @cached_property
    def data(self) -> tuple[Batch, Batch]:
        """1,500 digits to train on, and 297 held out."""
        return split()

    def cell(self, setting: Setting, tau: int) -> Cell:
        """The setting at that staleness, trained once for every seed by one worker."""
        key = setting, tau
        if key not in self.cells:
            held = Held(self.data[1])
            accuracies, digests = [], []
            for seed in self.seeds:
                model = setting.network(seed)
                run = self.train(model, setting, tau, seed)
                accuracies.append(held(model)["accuracy"])
                digests.append(run.digest)
            self.cells[key] = Cell(setting, tau, tuple(accuracies), tuple(digests))
        return self.cells[key]

    def train(
        self, model: nn.Module, setting: Setting, tau: int, seed: int, workers: int = 1, kind: str = "threads"
    ) -> Run:
        """Train a model in place under `ordered`. That it may not learn, or does not, is what the study looks into."""
        with untold():
            return train(
                model,
                self.data[0],
                loss,
                optimizer=setting.optimizer,
                update="ordered",
                staleness=tau,
                compensation=setting.compensation,
                workers=workers,
                kind=kind,
                epochs=self.epochs,
                batch_size=BATCH_SIZE,
                seed=seed,
                on_nonfinite="ignore",
            )

    def by_hand(self, setting: Setting, tau: int, seed: int) -> str:
        """The digest of a plain loop that keeps τ old copies of the model and takes each gradient on the oldest."""
        images, labels = self.data[0]
        schedule = Schedule(len(labels), BATCH_SIZE, seed=seed)
        model = setting.network(seed)
        stepper = setting.optimizer(model.named_parameters())
        versions = deque([deepcopy(model)], maxlen=tau + 1)
        for update in range(self.epochs * len(schedule)):
            rows = schedule.indices(update)
            _step(stepper, model, versions[0], (images[rows], labels[rows]))
            versions.append(deepcopy(model))
        return digest(model)


def _step(stepper: torch.optim.Optimizer, model: nn.Module, old: nn.Module, batch: Batch) -> None:
    """One step of `model` by the gradient of `old`."""
    gradients: tuple[Tensor, ...] = torch.autograd.grad(loss(old, batch), list(old.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    stepper.step()
