"""probe(): count the updates that a rule loses or applies twice, on this machine.

Every gradient is exactly one, the learning rate is one, and every value of the model begins at zero, so a value ends at
minus the number of updates that were applied to it. float32 counts exactly up to 2²⁴.

Legend: V values of the model, N updates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.data.sources import Source
from hogwild.errors import ArgumentError, short_traceback
from hogwild.model.computed import copy_of_model
from hogwild.rules.base import Rule
from hogwild.rules.registry import LEAST_OVERHEAD, rule_for, rule_name
from hogwild.rules.row_gradients import is_told
from hogwild.run.result import Run
from hogwild.run.training import train_config
from hogwild.workers.kinds import TEAMS
from hogwild.workers.worker_info import worker_info

_MOST = 1 << 24  # float32 counts no further
SIZE = 2_410  # values of an MLP 64-32-10


@dataclass(frozen=True)
class Probe:
    """How often N updates were applied to each of V values.

    Attributes:
        update: the rule that was probed.
        kind: of its workers.
        workers: how many.
        updates: N, what should have been applied to every value.
        values: V.
        applied: the mean share of N that was applied; 1.0 where nothing was lost or doubled, on balance.
        lost: updates missing, summed over the values that had fewer than N.
        doubled: updates too many, summed over the values that had more than N.
        touched: values that did not get exactly N.
        least: applications of the value that had the fewest.
        most: applications of the value that had the most.
        staleness: mean and maximum age of the reads, in updates.
        seconds: of training.

    A value that lost one update and got another one twice counts as exact: only the balance of each value is seen.
    """

    update: str
    kind: str
    workers: int
    updates: int
    values: int
    applied: float
    lost: int
    doubled: int
    touched: int
    least: int
    most: int
    staleness: tuple[float, int]
    seconds: float

    @property
    def exact(self) -> bool:
        """True when every value got as many updates as there were."""
        return self.touched == 0

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        mean, largest = self.staleness
        return {**asdict(self), "exact": self.exact, "staleness": {"mean": mean, "max": largest}}

    def summary(self) -> str:
        """One line for a person."""
        if self.exact:
            return f"exact: each of {self.values:,} values got {self.updates:,} of {self.updates:,} updates"
        return (
            f"{100 * self.applied:.6g} % applied; {self.touched:,} of {self.values:,} values are off, "
            f"{self.lost:,} updates lost and {self.doubled:,} doubled over all values"
        )


@dataclass(frozen=True)
class NoProbe:
    """A rule and a kind that were not probed, and why."""

    update: str
    kind: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values; `exact` is None: nobody counted."""
        return {**asdict(self), "exact": None}


@short_traceback
def probe(
    update: str | Rule = LEAST_OVERHEAD,
    kind: str = "processes",
    workers: int = 2,
    *,
    updates: int = 2_000,
    size: int = SIZE,
    model: nn.Module | None = None,
    data: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    batch_size: int = 64,
) -> Probe:
    """Count lost and doubled updates.

    Args:
        update: the rule, by name or a `Rule` of yours.
        kind: "threads" or "processes".
        workers: how many; a rule gets the options that keep so many workers busy.
        updates: N, at most 2²⁴.
        size: V, of a model that takes no time to compute, so that workers meet as often as they can.
        model: probe at the size and step time of this model instead: each update computes the gradient of `loss` on a
            batch of `data`, drops it, and applies ones. The model is left as it is.
        data: as in `hogwild.train`; needed with a model.
        loss: as in `hogwild.train`; needed with a model.
        batch_size: as in `hogwild.train`, where a model is given.

    Raises:
        ArgumentError: an argument that cannot work.
        NotReproducible: the rule promises the same bits, and `loss` draws random numbers that all threads share.
        WorkerError: a worker died; nothing is counted then.
    """
    _refuse(updates, size)
    rule = copy.copy(rule_for(update, workers))  # the caller's stays as it is
    rule.compensation = "none"  # each step is what is counted
    if model is None:
        source, shapes, count = _Nothing(), [torch.Size([size])], _ones
    elif data is None or loss is None:
        raise ArgumentError("model given without data and loss; its step cannot be timed without them")
    else:
        source, shapes = data, [p.shape for p in model.parameters() if p.requires_grad]
        own = kind in TEAMS and TEAMS[kind].own_processes
        copies = [copy_of_model(model) for _ in range(1 if own else max(workers, 1))]
        count = partial(_ones_after, copies, loss)
    counter = Counter(shapes)
    config = RunConfig(
        name="probe",
        update=rule_name(rule),
        kind=kind,
        workers=workers,
        updates=updates,
        batch_size=batch_size,
        on_worker_failure="raise",
    )
    sgd = partial(torch.optim.SGD, lr=1.0)
    return _count(counter, train_config(config, counter, source, count, optimizer=sgd, rule=rule))


def _refuse(updates: int, size: int) -> None:
    if not 1 <= updates <= _MOST:
        raise ArgumentError(f"updates {updates} is not from 1 to {_MOST:,}, up to which float32 counts exactly")
    if size < 1:
        raise ArgumentError(f"size {size} is below 1; a model has at least one value")


class Counter(nn.Module):
    """Values that begin at zero and count down: parameters of the given shapes, float32."""

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self) -> Tensor:
        """The sum of all values, whose gradient is exactly one."""
        return torch.stack([value.sum() for value in self.values]).sum()


class _Nothing(Source):
    """Batches of a training that needs none."""

    def batch(self, update: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Nothing."""
        return torch.empty(0)


def _ones(counter: nn.Module, batch: Any) -> Any:  # noqa: ARG001
    return counter()


def _ones_after(
    timed: Sequence[nn.Module], loss: Callable[[nn.Module, Any], Any], counter: nn.Module, batch: Any
) -> Any:
    """Take the time that a real gradient takes, on a model that no other thread has, and return ones."""
    info = worker_info()
    own = timed[info.index % len(timed)] if info is not None else timed[0]
    output = loss(own, batch)
    if not is_told(output):  # its gradients are computed already
        parameters = [parameter for parameter in own.parameters() if parameter.requires_grad]
        torch.autograd.grad(_total(output), parameters, allow_unused=True)
    return counter()


def _total(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else torch.stack([part.reshape(()) for part in output]).mean()


def _count(counter: Counter, run: Run) -> Probe:
    counts = -torch.cat([value.detach().reshape(-1) for value in counter.values]).to(torch.int64)
    expected = run.config.updates or 0
    off = counts - expected
    return Probe(
        update=run.config.update,
        kind=run.kind,
        workers=run.config.workers,
        updates=expected,
        values=counts.numel(),
        applied=int(counts.sum()) / (expected * counts.numel()),
        lost=int((-off).clamp(min=0).sum()),
        doubled=int(off.clamp(min=0).sum()),
        touched=int((off != 0).sum()),
        least=int(counts.min()),
        most=int(counts.max()),
        staleness=(run.staleness.mean, run.staleness.max),
        seconds=run.seconds,
    )
