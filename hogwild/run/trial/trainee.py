"""Before a run, in the caller's process: a batch computed on the caller's values, as a worker would compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.data.seeding import seed_generators
from hogwild.data.sources import Source, own_copy
from hogwild.model.anatomy import Anatomy
from hogwild.model.replica import Binding, carry, extras_of, replicate, stand_ins_of
from hogwild.optim.factory import Factory
from hogwild.rules.gradients import gradients_of
from hogwild.run.job import Job, Loss
from hogwild.shared.layout import Layout
from hogwild.shared.tickets import Ticket
from hogwild.workers.process.twins import twins_of
from hogwild.workers.worker_info import WorkerInfo, informed, log_to_no_run

Factors = Callable[[int], float]

_STEP = 2.0**-7  # by which values are moved, as a part of them


@dataclass(frozen=True)
class Copies:
    """What another worker would have; nothing of it has been used. `stand_ins`: id of a parameter → the copy's."""

    model: nn.Module
    stand_ins: dict[int, nn.Parameter]
    source: Source
    loss: Loss
    lr_schedule: Factors | None
    optimizer: Factory


@dataclass(frozen=True)
class Computed:
    """What one batch came to."""

    loss: float
    gradients: Sequence[Tensor | None]
    buffers: Sequence[Tensor]


def own_parts(job: Job) -> Copies:
    """What the first worker has: in a process, of a model that is reached past a copy of it, what is sent there."""
    return (job.copied_together and sent_parts(job)) or shared_parts(job)


def sent_parts(job: Job) -> Copies | None:
    """What a worker process is given; None where it cannot be pickled."""
    own = list(job.model.parameters())
    bare = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in own}
    names = ("model", "source", "loss", "optimizer")
    objects = {
        **{name: getattr(job, name) for name in names},
        "lr_schedule": job.factors,
        "extras": [extras_of(p) for p in own],
    }
    twins = twins_of(objects, job.source, bare)
    if twins is None:
        return None
    for parameter, extras in zip(own, twins.pop("extras"), strict=True):
        carry(extras, bare[id(parameter)])
    return Copies(stand_ins=bare, **twins)


def shared_parts(job: Job) -> Copies:
    """What a thread has."""
    assert job.source is not None
    assert job.loss is not None
    stand_ins = stand_ins_of(job.model)
    replica = replicate(job.model, stand_ins)
    return Copies(replica, stand_ins, own_copy(job.source), job.loss, job.factors, job.optimizer)


class Trainee:
    """Computes gradients on the caller's values as a worker would."""

    def __init__(self, job: Job, anatomy: Anatomy, parts: Copies, index: int) -> None:
        self._job, self._parts = job, parts
        self._info = WorkerInfo(index, job.config.workers, job.config.seed, log_to_no_run)
        self._values = [parameter.detach() for parameter in anatomy.trained.values()]
        self._names = list(anatomy.trained)
        self._buffers = list(anatomy.buffers.values())
        parameters = [parts.stand_ins[id(parameter)] for parameter in anatomy.trained.values()]
        self._binding = Binding(parts.model, parameters, Layout.of(list(anatomy.buffers.items())))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters that the loss is computed on, in layout order."""
        return self._binding.parameters

    @contextmanager
    def losing(self, ticket: Ticket, values: Sequence[Tensor] | None = None) -> Iterator[Any]:
        """Inside, as a worker at the batch of that ticket: what the loss returns, on the caller's values if None."""
        parts = self._parts
        with informed(self._info):
            seed_generators(self._info.start(ticket.update, ticket.batch))
            replica = self._binding.point_at(self._values if values is None else values, self._buffers)
            yield parts.loss(replica, parts.source.batch(ticket.batch, self._info.generator))

    def compute(self, number: int, *, moved: bool = False) -> Computed:
        """The batch of the ticket of that number, on the caller's values, or on such as a step may make of them."""
        values = [torch.where(value == 0, _STEP, value * (1 + _STEP)) for value in self._values] if moved else None
        with self.losing(self._job.rule.deal(number, self._job.tickets), values) as output:
            value, gradients = gradients_of(output, self.parameters, self._names, self._job.rule.gradient_by)
        own = [None if gradient is None else gradient.detach().clone() for gradient in gradients]
        return Computed(value, own, [buffer.clone() for buffer in self._binding.changed_buffers()])
