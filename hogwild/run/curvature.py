"""How curved is the loss where a run begins? The largest eigenvalue of its Hessian, by a few products with vectors.

    v ← the gradient of the first batches, over its length
    four times:  λ ← length of H v,  v ← H v / λ            H: the mean of their Hessians

By power iteration, from the gradient, which lies in what is curved most already. On five tasks it came within a fifth
of the eigenvalue over all of the data. Two gradients and eight products, each of which costs two to three gradients,
with the threads and generators of a worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hogwild.model.anatomy import Anatomy
from hogwild.rules.gradients import losses_of
from hogwild.run.job import Job
from hogwild.run.trainee import Trainee, own_parts
from hogwild.shared.tickets import Ticket

BATCHES, PRODUCTS = 2, 4
_DTYPES = (torch.float32, torch.float64)


def curvature(job: Job, anatomy: Anatomy) -> float | None:
    """Of the loss on the first batches, at the caller's values; in units of the loss over those of the parameters
    squared.

    None where it is not known: there is no loss, it cannot be differentiated twice, it is not curved upwards anywhere,
    or a parameter is of another dtype than float32 and float64.
    """
    parameters = list(anatomy.trained.values())
    if job.source is None or job.loss is None or any(p.dtype not in _DTYPES for p in parameters):
        return None
    try:
        several = job.rule.batches_per_ticket
        tickets = [Ticket(n, n, n * several) for n in range(min(BATCHES, job.tickets))]  # in a replay too
        found = _power_iteration(Trainee(job, anatomy, own_parts(job), 0), tickets)
    except Exception:  # whatever a loss of the caller's may raise at a second derivative
        return None
    return found if math.isfinite(found) and found > 0 else None


def _power_iteration(trainee: Trainee, tickets: Sequence[Ticket]) -> float:
    vector, length = _mean(trainee, tickets, None), 0.0
    for _ in range(PRODUCTS):
        scale = 1 / _length(vector)
        vector = _mean(trainee, tickets, [part * scale for part in vector])
        length = _length(vector)
    return length


def _mean(trainee: Trainee, tickets: Sequence[Ticket], vector: Sequence[Tensor] | None) -> list[Tensor]:
    """Over the batches: of the gradients, or of the products of the Hessians with a vector."""
    total = [torch.zeros_like(parameter) for parameter in trainee.parameters]
    for ticket in tickets:
        with trainee.losing(ticket) as output:
            for part in _parts(output, trainee, vector):
                torch._foreach_add_(total, part)
    return [part / len(tickets) for part in total]


def _parts(output: object, trainee: Trainee, vector: Sequence[Tensor] | None) -> Iterator[list[Tensor]]:
    """Of each scalar that the loss returned, over their number."""
    parameters = trainee.parameters
    scalars = list(losses_of(output)[0])
    for scalar in scalars:
        gradients = torch.autograd.grad(
            scalar / len(scalars),
            parameters,
            create_graph=vector is not None,
            allow_unused=True,
            materialize_grads=True,
        )
        if vector is not None:
            along = torch.stack([(g * v).sum() for g, v in zip(gradients, vector, strict=True)]).sum()
            gradients = torch.autograd.grad(along, parameters, allow_unused=True, materialize_grads=True)
        yield list(gradients)


def _length(vector: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in vector))
