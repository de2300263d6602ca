"""What the compensation study trains: tasks, a setting of one at one delay, and how it went over the seeds."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hogwild import Run, train

from . import digits, digits_conv
from ._actors import Judge, Reinforce, Seeds
from ._cartpole import Policy
from ._common import untold

Metrics = Callable[[nn.Module], dict[str, float]]
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
}
"""SGD with momentum 0.9, and Adam with torch's own β."""


@dataclass(frozen=True)
class Task:
    """Something to learn.

    Attributes:
        name: in a few words.
        model: seed → the model, initialised.
        data: what `hogwild.train` takes as data.
        loss: what it takes as loss.
        judge: model → metrics on held-out data.
        metric: the one that counts: an accuracy, a return, or a loss.
        method: of `OPTIMIZERS`.
        rates: learning rates: below the best for serial training, about it, and above it.
        lengths: of the training, as `hogwild.train` takes them.
    """

    name: str
    model: Callable[[int], nn.Module]
    data: Any
    loss: Callable[[nn.Module, Any], Any]
    judge: Metrics
    metric: str
    method: str
    rates: tuple[float, float, float]
    lengths: Mapping[str, Any]

    @property
    def is_loss(self) -> bool:
        """True where less is better."""
        return self.metric == "loss"

    def with_(self, method: str, rates: tuple[float, float, float]) -> Task:
        """The same by another optimizer."""
        return replace(self, method=method, rates=rates)

    def __str__(self) -> str:
        return f"{self.name}, {self.method}"


def tasks() -> list[Task]:
    """A convolution net with BatchNorm, an embedding, a regression, the factors of a matrix, a policy that plays."""
    conv, embedding, curve, matrix = _digits(), _topics(), _regression(), _matrix()
    return [
        conv,
        conv.with_("Adam", (0.001, 0.003, 0.01)),
        embedding,
        embedding.with_("Adam", (0.003, 0.01, 0.03)),
        curve,
        curve.with_("Adam", (0.001, 0.003, 0.01)),
        matrix,
        matrix.with_("Adam", (0.003, 0.01, 0.03)),
        _cartpole(),
    ]


def _digits() -> Task:
    held = digits.Held(digits.split()[1])
    return Task(
        "digits, conv net with BatchNorm",
        lambda seed: digits_conv.build(seed, None).model,
        digits.split()[0],
        digits.loss,
        held,
        "accuracy",
        "SGD",
        (0.015, 0.05, 0.15),
        {"epochs": 8, "batch_size": 16},
    )


def _topics() -> Task:
    texts, topics = _texts(6_000, 1), _texts(5_000, 2)
    return Task(
        "topics of texts, an embedding",
        _embedding,
        texts,
        digits.loss,
        digits.Held(topics),
        "accuracy",
        "SGD",
        (0.2, 0.6, 2.0),
        {"epochs": 12, "batch_size": 32},
    )


def _regression() -> Task:
    return Task(
        "regression on a curve, tanh",
        _network,
        _curve(4_000, 1, noise=0.05),
        _squared,
        _Fit(_curve(5_000, 2, noise=0.0)),
        "loss",
        "SGD",
        (0.002, 0.006, 0.02),
        {"epochs": 24, "batch_size": 32},
    )


def _matrix() -> Task:
    return Task(
        "factors of a matrix",
        lambda seed: _seeded(seed, _Factors),
        _entries(12_000, 1, noise=0.1),
        _squared,
        _Fit(_entries(5_000, 2, noise=0.0)),
        "loss",
        "SGD",
        (0.1, 0.2, 0.4),
        {"epochs": 20, "batch_size": 64},
    )


def _cartpole() -> Task:
    return Task(
        "CartPole, REINFORCE",
        lambda _: Policy(),
        Seeds(),
        Reinforce(),
        Judge(0),
        "return",
        "Adam",
        (0.005, 0.015, 0.05),
        {"updates": 120, "evaluate_every": 10},
    )


TOPICS, WORDS, LENGTH = 6, 2_000, 20


def _texts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Texts of shape [count, 20] of 2,000 words, a third of which are of the text's topic; topics of shape [count]."""
    random = torch.Generator().manual_seed(seed)
    topics = torch.randint(0, TOPICS, (count,), generator=random)
    of_topic = torch.randint(0, WORDS // TOPICS // 2, (count, LENGTH), generator=random) * TOPICS + topics[:, None]
    others = (torch.rand(count, LENGTH, generator=random) ** 2 * WORDS).long().clamp(max=WORDS - 1)
    return torch.where(torch.rand(count, LENGTH, generator=random) < 0.3, of_topic, others), topics


def _curve(count: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Points x in −3 … 3 and y = sin 2x + x² / 10 with noise, both of shape [count, 1]."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=random) * 6 - 3
    return x, torch.sin(2 * x) + x.square() / 10 + noise * torch.randn(count, 1, generator=random)


ROWS, COLUMNS, RANK = 300, 200, 4


def _entries(count: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Places (row, column) in a matrix of 300 × 200 and rank 4, int64 of shape [count, 2], and what stands there with
    noise, of shape [count]: 1 in the mean square."""
    of_matrix, random = (torch.Generator().manual_seed(number) for number in (0, seed))
    left, right = (torch.randn(size, RANK, generator=of_matrix) for size in (ROWS, COLUMNS))
    places = torch.stack([torch.randint(size, (count,), generator=random) for size in (ROWS, COLUMNS)], 1)
    entries = (left[places[:, 0]] * right[places[:, 1]]).sum(1) / RANK**0.5
    return places, entries + noise * torch.randn(count, generator=random)


class _Factors(nn.Module):
    """A row of 8 factors for each row and each column of a matrix; 4,000 parameters. A batch has few of each."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(ROWS, 8), nn.Embedding(COLUMNS, 8)
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, places: Tensor) -> Tensor:
        """What stands at places of shape [B, 2], of shape [B]."""
        entries: Tensor = (self.rows(places[:, 0]) * self.columns(places[:, 1])).sum(1)
        return entries


class _Bag(nn.Module):
    """The mean of the embeddings of a text's words, and a linear layer on it; 32,102 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.topics = nn.Embedding(WORDS, 16), nn.Linear(16, TOPICS)

    def forward(self, texts: Tensor) -> Tensor:
        """Logits of shape [B, 6] of texts of shape [B, 20]."""
        logits: Tensor = self.topics(self.words(texts).mean(1))
        return logits


def _embedding(seed: int) -> nn.Module:
    return _seeded(seed, _Bag)


def _network(seed: int) -> nn.Module:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    return _seeded(seed, make)


def _seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean squared error of a batch."""
    return mse_loss(model(batch[0]), batch[1])


@dataclass(frozen=True)
class _Fit:
    """The mean squared distance to a curve, or to a matrix (`loss`)."""

    points: tuple[Tensor, Tensor]

    def __call__(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            return {"loss": _squared(model, self.points).item()}


@dataclass(frozen=True)
class Trained:
    """One task at one rate and delay, over the seeds.

    Attributes:
        values: the task's metric at the end, by seed; infinite where the loss was not finite.
        near: the updates after which the metric first was nine tenths of the way from where it began to where the
            serial training ended, by seed; infinite where it never was. For a loss, the way of its logarithm.
        warned: by seed, whether the run was warned of its staleness.
    """

    task: Task
    values: tuple[float, ...]
    near: tuple[float, ...] = ()
    warned: tuple[bool, ...] = ()

    @property
    def median(self) -> float:
        """Of the metric over the seeds."""
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        """Of the metric over the seeds."""
        return max(self.values) if self.task.is_loss else min(self.values)

    def lost(self, serial: Trained) -> float:
        """How much worse the median is than that of serial training: in points of accuracy, in percent of a return, or
        in percent of a loss; below 0 where it is better."""
        if self.task.is_loss:
            return 100 * (self.median / serial.median - 1)
        scale = serial.median if self.task.metric == "return" else 1.0
        return 100 * (serial.median - self.median) / scale


@dataclass(frozen=True)
class Delays:
    """Where tasks are trained: the seeds and the delays; nothing is trained twice."""

    seeds: tuple[int, ...]
    delays: tuple[int, ...] = (0, 1, 3, 7, 15)
    done: dict[tuple[str, float, int, str], Trained] = field(default_factory=dict)

    def trained(self, task: Task, rate: float, tau: int, compensation: str = "none") -> Trained:
        """The task at that rate and delay, once for every seed by one worker."""
        key = str(task), rate, tau, compensation if tau else "none"
        if key not in self.done:
            told: list[list[str]] = [[] for _ in self.seeds]
            pairs = zip(self.seeds, told, strict=True)
            runs = [train_task(task, rate, tau, compensation, seed, told=words) for seed, words in pairs]
            ends = [_end(run, task) for run in runs]
            serial = self.trained(task, rate, 0).values if tau else tuple(ends)
            near = [_near(run, task, end) for run, end in zip(runs, serial, strict=True)]
            self.done[key] = Trained(task, tuple(ends), tuple(near), tuple(map(bool, told)))
        return self.done[key]


def train_task(
    task: Task,
    rate: float,
    tau: int,
    compensation: str,
    seed: int,
    workers: int = 1,
    told: list[str] | None = None,
) -> Run:
    """Train it under `ordered`. What is warned of its staleness goes into `told`, and nowhere else."""
    with untold(), warnings.catch_warnings(record=True) as found:
        warnings.filterwarnings("always", message="staleness ", category=UserWarning)
        run = train(
            task.model(seed),
            task.data,
            task.loss,
            optimizer=partial(OPTIMIZERS[task.method], lr=rate),
            update="ordered",
            staleness=tau,
            compensation=compensation,
            workers=workers,
            kind="processes" if task.metric == "return" else "threads",
            seed=seed,
            recheck=0,
            evaluate=task.judge,
            on_nonfinite="ignore",
            **task.lengths,
        )
    if told is not None:
        told += [str(one.message) for one in found if str(one.message).startswith("staleness ")]
    return run


def _end(run: Run, task: Task) -> float:
    value = run.metrics[task.metric]
    return value if math.isfinite(value) else math.inf if task.is_loss else 0.0


def _near(run: Run, task: Task, end: float) -> float:
    """The updates after which the metric first was nine tenths of the way to `end`."""
    first = run.evaluations[0][task.metric]
    for row in run.evaluations:
        value = row[task.metric]
        if 0 < value <= first**0.1 * end**0.9 if task.is_loss else value >= first + 0.9 * (end - first):
            return row["update"]
    return math.inf
