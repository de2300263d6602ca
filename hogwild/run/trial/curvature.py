"""How curved is the loss where a run begins? The largest eigenvalue of its Hessian, by a few products with vectors.

    v ← the gradient of the first batches, over its length
    four times:  λ ← length of H v,  v ← H v / λ            H: the mean of their Hessians

By power iteration, from the gradient, which lies in what is curved most already. On five tasks it came within a fifth
of the eigenvalue over all of the data. Two gradients and eight products, each of which costs two to three gradients,
with the threads and generators of a worker.

Adam divides each component of a gradient by how large it was. In units of its steps the Hessian is D H D, and D × the
gradient is begun with, where

    D: diagonal, 1 / √(√s + eps), and 0 where s is 0
    s: the mean of g² over the batches, and as one batch more, the mean of that over its parameter

Four batches tell little of what few of their samples use, as the row of an embedding: where those few have a gradient
near 0 by chance, D without the one more would be very large, and the eigenvalue that of a single component. Of the
factors of a matrix (the study `compensation`) it was 263 to 895 without, and 5.7 to 5.9 with it; 64 batches say 1.3.

A layer that goes into a normalisation may be scaled, and the loss stays as it is; so its gradient is at right angles to
its values, on every batch. Seen: a cosine of at most .001 / √n with BatchNorm, LayerNorm and GroupNorm, for n elements,
and of .16 / √n or more elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hogwild.model.anatomy import Anatomy
from hogwild.optim.gradients import added_in_order
from hogwild.optim.stability import GROWS, Curvature
from hogwild.rules.gradients import losses_of
from hogwild.run.job import Job
from hogwild.run.trial.trainee import Trainee, own_parts
from hogwild.shared.tickets import Ticket

BATCHES, BATCHES_OF_ADAM, PRODUCTS = 2, 4, 4
_DTYPES = (torch.float32, torch.float64)
_ATTENTION = threading.RLock()  # torch has one choice of kernels for all threads: two that put it back would mix it up
_RIGHT_ANGLE = 0.01  # of the cosine of one, times the root of the number of elements


def curvature(job: Job, anatomy: Anatomy, eps: Sequence[float] | None = None) -> Curvature | None:
    """Of the loss on the first batches, at the caller's values; for Adam with `eps`, its own of each trained parameter.

    None where it is not known: there is no loss, it cannot be differentiated twice, it is not curved upwards anywhere,
    or a parameter is of another dtype than float32 and float64.
    """
    parameters = list(anatomy.trained.values())
    if job.source is None or job.loss is None or any(p.dtype not in _DTYPES for p in parameters):
        return None
    try:
        several = job.rule.batches_per_ticket
        batches = min(BATCHES if eps is None else BATCHES_OF_ADAM, job.tickets)
        tickets = [Ticket(n, n, n * several) for n in range(batches)]  # in a replay too
        with _ATTENTION, sdpa_kernel(SDPBackend.MATH):  # the only attention with a second derivative
            found = _power_iteration(Trainee(job, anatomy, own_parts(job), 0), list(anatomy.trained), tickets, eps)
    except Exception:  # whatever a loss of the caller's may raise at a second derivative
        return None
    return found if math.isfinite(found.largest) and found.largest > 0 else None


def _power_iteration(
    trainee: Trainee, names: Sequence[str], tickets: Sequence[Ticket], eps: Sequence[float] | None
) -> Curvature:
    gradients = list(_each(trainee, tickets, None))
    grows = 1 if _is_normalised(names, trainee.parameters, gradients) else GROWS
    units, length = _units(gradients, eps), 0.0
    vector = _times(units, _mean(gradients))
    for _ in range(PRODUCTS):
        scale = 1 / _length(vector)
        along = _times(units, [part * scale for part in vector])
        vector = _times(units, _mean(list(_each(trainee, tickets, along))))
        length = _length(vector)
    return Curvature(length, grows)


def _is_normalised(names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> bool:
    """True where all layers but one go into a normalisation, as of a net with BatchNorm all but the last; a layer is a
    module with a parameter of two dimensions or more."""
    layers: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        layers.setdefault(name.rpartition(".")[0], []).append(i)
    scaled = [
        all(_at_right_angles([parameters[i] for i in own], [gradient[i] for i in own]) for gradient in gradients)
        for own in layers.values()
        if any(parameters[i].dim() > 1 for i in own)
    ]
    return len(gradients) > 1 and any(scaled) and scaled.count(False) <= 1


def _at_right_angles(values: Sequence[Tensor], gradient: Sequence[Tensor]) -> bool:
    """True where the values of a layer are at right angles to their gradient; not where that is nothing."""
    products = (float((v.detach().double() * g.double()).sum()) for v, g in zip(values, gradient, strict=True))
    along = added_in_order(products)
    lengths = _length([v.detach() for v in values]) * _length(gradient)
    numel = sum(v.numel() for v in values)
    return lengths > 0 and abs(along) / lengths * math.sqrt(numel) <= _RIGHT_ANGLE


def _units(gradients: Sequence[Sequence[Tensor]], eps: Sequence[float] | None) -> list[Tensor] | None:
    """D, of Adam, for each parameter; None for an optimizer that divides by nothing."""
    if eps is None:
        return None
    count = len(gradients)
    squares = _mean([[part.square() for part in gradient] for gradient in gradients])
    squares = [(count * square + square.mean()) / (count + 1) for square in squares]
    return [
        (square.sqrt() + small).rsqrt().masked_fill(square == 0, 0) for square, small in zip(squares, eps, strict=True)
    ]


def _times(units: Sequence[Tensor] | None, vector: list[Tensor]) -> list[Tensor]:
    return vector if units is None else [unit * part for unit, part in zip(units, vector, strict=True)]


def _mean(vectors: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [sum(parts[1:], parts[0]) / len(parts) for parts in zip(*vectors, strict=True)]


def _each(trainee: Trainee, tickets: Sequence[Ticket], vector: Sequence[Tensor] | None) -> Iterator[list[Tensor]]:
    """Of each batch, the gradient, or the product of its Hessian with a vector."""
    for ticket in tickets:
        try:
            total = _of_batch(trainee, ticket, vector)
        except Exception:  # a read that fails once, as in a worker, changes no bit
            total = _of_batch(trainee, ticket, vector)
        yield total


def _of_batch(trainee: Trainee, ticket: Ticket, vector: Sequence[Tensor] | None) -> list[Tensor]:
    total = [torch.zeros_like(parameter) for parameter in trainee.parameters]
    with trainee.losing(ticket) as output:
        for part in _parts(output, trainee, vector):
            torch._foreach_add_(total, part)
    return total


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
    squares = (float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in vector)
    return math.sqrt(added_in_order(squares))
