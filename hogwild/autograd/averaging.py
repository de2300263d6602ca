"""The average gradient of many losses, from one graph or from one graph at a time.

Differentiation is linear, so the gradient of the mean of losses is the mean of their gradients. The two ways
of computing it differ in what they keep: a list of losses keeps every graph until the one pass over their
mean, while a generator's graph is walked and freed before the generator makes the next loss.

Shapes: `B` losses of one element each; `P` parameters, each gradient of its parameter's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Losses = Tensor | Sequence[Tensor] | Iterator[Tensor]
"""One scalar, a list or tuple of scalars (averaged), or a generator of scalars whose graphs share nothing."""


@dataclass(frozen=True)
class Average:
    """The average of the losses, and its gradient.

    Attributes:
        loss: the mean of the losses, shape [], the losses' dtype, without a graph.
        count: how many losses were averaged, B.
        gradients: P of them, in the order of the parameters; None where no loss reached the parameter. None
            is not zero: an optimizer skips the one, and for the other it still moves by its momentum.
    """

    loss: Tensor
    count: int
    gradients: tuple[Tensor | None, ...]


def mean_loss(losses: Tensor | Sequence[Tensor]) -> Tensor:
    """The mean of the losses as one scalar of shape [], with the graphs of all of them behind it.

    Raises:
        TypeError: something among the losses is not a tensor.
        ValueError: there is no loss, or one of them has more than one element.
    """
    if isinstance(losses, Tensor):
        return _scalar(losses, 0)
    scalars = [_scalar(loss, index) for index, loss in enumerate(losses)]
    if not scalars:
        raise ValueError("there is no loss to average: the list is empty")
    return scalars[0] if len(scalars) == 1 else torch.stack(scalars).mean()


def average_gradients(losses: Losses, parameters: Iterable[Tensor]) -> Average:
    """The gradient of the mean of the losses by `torch.autograd.grad`: no `.grad` is read or written.

    A list is averaged first and differentiated once. From a generator, each loss is differentiated and its
    graph freed before the next is asked for, and the sum of the gradients is divided by the count at the end.
    The two differ by rounding only.

    Args:
        losses: one scalar, a list or tuple of scalars, or a generator of scalars.
        parameters: P tensors that require a gradient, of any shapes.

    Raises:
        TypeError: something among the losses is not a tensor.
        ValueError: there is no loss, one of them has more than one element, or a generator's loss has a graph
            in common with an earlier one, which was freed when that one was differentiated.
    """
    wanted = tuple(parameters)
    sums: list[Tensor | None] = [None] * len(wanted)
    total: Tensor | None = None
    passes = count = 0
    for loss, terms in _graphs(losses):
        scalar = _scalar(loss, count)
        try:
            parts = torch.autograd.grad(scalar, wanted, allow_unused=True)
        except RuntimeError as error:
            _explain(error, count)
            raise
        sums = [_plus(one, part) for one, part in zip(sums, parts, strict=True)]
        total = _plus(total, scalar.detach())
        passes += 1
        count += terms
        # What is held here while the generator builds its next graph would add to the peak.
        del loss, scalar, parts
    if total is None:
        raise ValueError("there is no loss to average: the generator yielded nothing")
    gradients = tuple(one if one is None or passes == 1 else one / passes for one in sums)
    return Average(total / passes, count, gradients)


def accumulate_average(losses: Losses, parameters: Iterable[Tensor]) -> Tensor:
    """The same by `backward()`: the average gradient is added to the `.grad` of each of the parameters.

    A `.grad` that was there stays the same tensor and receives the average in place, as `backward()` itself
    would do it; where there was none, and some loss reaches the parameter, it is new. Nothing else receives
    a gradient.

    Args:
        losses: one scalar, a list or tuple of scalars, or a generator of scalars.
        parameters: P leaf tensors that require a gradient, of any shapes.

    Returns:
        The mean of the losses, shape [], without a graph.

    Raises:
        TypeError, ValueError: as `average_gradients`; every `.grad` is then what it was.
    """
    wanted = tuple({id(one): one for one in parameters}.values())  # a tied parameter has one .grad
    before = [one.grad for one in wanted]
    for one in wanted:
        one.grad = None
    added: list[Tensor | None] = [None] * len(wanted)
    try:
        loss, passes = _backward(losses, wanted)
        added = [None if one.grad is None else one.grad.div_(passes) for one in wanted]
    finally:
        for one, grad, part in zip(wanted, before, added, strict=True):
            one.grad = part if grad is None else grad
            if grad is not None and part is not None:
                grad.add_(part)
    return loss / passes


def _backward(losses: Losses, wanted: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    """Walk and free one graph after another; the sum of what was walked, and how many there were."""
    total: Tensor | None = None
    passes = 0
    for loss, _ in _graphs(losses):
        scalar = _scalar(loss, passes)
        try:
            scalar.backward(inputs=wanted)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            _explain(error, passes)
            raise
        total = _plus(total, scalar.detach())
        passes += 1
        del loss, scalar
    if total is None:
        raise ValueError("there is no loss to average: the generator yielded nothing")
    return total, passes


def _graphs(losses: Losses) -> Iterator[tuple[Tensor, int]]:
    """What is differentiated in one pass, and how many losses it stands for."""
    if isinstance(losses, Tensor):
        yield losses, 1
    elif isinstance(losses, Sequence):
        yield mean_loss(losses), len(losses)
    else:
        for loss in losses:
            yield loss, 1
            del loss


def _plus(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return part if total is None else total
    return total + part


def _scalar(loss: object, index: int) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss {index} is a {type(loss).__name__}; a loss is a tensor of one element")
    if loss.numel() != 1:
        raise ValueError(f"loss {index} has shape {tuple(loss.shape)}; a loss is a tensor of one element")
    return loss.reshape(())


def _explain(error: RuntimeError, index: int) -> None:
    """Say what was done wrong where torch only says that a graph is walked a second time."""
    if "second time" in str(error):
        raise ValueError(
            f"loss {index} of the generator has a graph in common with an earlier loss, which was freed with "
            "it; compute each loss from a forward pass of its own, or return a list"
        ) from error
