"""The loss of a batch → gradients, by `torch.autograd.grad` or by `backward()`.

A loss is a scalar, a list of scalars or a generator of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ArgumentError, a_type
from hogwild.rules.row_gradients import is_told, named_gradients

_run_backward = torch.autograd.Variable._execution_engine.run_backward

BatchLoss = Callable[[nn.Module], Any]
"""The loss of one batch: replica → a scalar, a list of scalars, a generator of scalars, or (value, gradients by
name)."""


def _value_told(output: tuple[Any, Mapping[str, Any]], names: Sequence[str]) -> float:
    """The value of a loss that tells its gradients.

    Raises:
        ArgumentError: it tells none, but of a value that is to be differentiated.
    """
    value, told = output
    if isinstance(value, Tensor):
        if value.requires_grad and not any(name in names for name in told):
            raise ArgumentError(
                "loss returned (loss, a mapping), which tells gradients by the names of parameters; return the loss "
                "alone, and record numbers by hogwild.worker_info().log(accuracy=…)"
            )
        value = value.detach()
    return float(value)


@dataclass(frozen=True)
class OneOfSeveral:
    """What the loss of one batch yields, where an update is made of several: the mean of it is one part of theirs."""

    scalars: Generator[Any, None, None]


def gradients_of(
    output: Any, parameters: Sequence[nn.Parameter], names: Sequence[str], by: str
) -> tuple[float, list[Tensor | None]]:
    """(loss, gradients) of what a loss returned: as it tells them, or differentiated by "grad" or by "backward"."""
    if is_told(output):
        return _value_told(output, names), named_gradients(output[1], names, parameters)
    return (autograd_gradients if by == "grad" else backward_gradients)(output, parameters)


def fitting(values: Sequence[Tensor | None], room: Mapping[int, int]) -> list[Tensor | None]:
    """The same, where sparse gradients of more rows than a slot has `room` for, by position, are coalesced.

    They are so wherever they go: whether a gradient waits in its slot is a matter of time, and a step takes rows that
    are named twice one after the other, or summed, which are different bits.
    """
    return [
        value.coalesce() if value is not None and value.is_sparse and value._nnz() > room.get(i, 0) else value
        for i, value in enumerate(values)
    ]


def losses_of(output: Any) -> tuple[Iterable[Any], bool]:
    """(the scalars in what a loss returned, whether each is backpropagated as it comes); among those of several batches
    one batch, of which more than one is to be.

    Raises:
        ArgumentError: the output is not a scalar tensor, a list of them, or a generator of them.
    """
    if isinstance(output, Tensor):  # first, for nearly every loss is one, and asking for a generator takes a while
        return [_scalar(output)], False
    if isinstance(output, Generator):
        return (part if isinstance(part, OneOfSeveral) else _scalar(part) for part in output), True
    if isinstance(output, tuple):
        raise ArgumentError(
            f"loss returned a tuple of {len(output)}; return the scalar to train on, several in a list, whose mean "
            f"is taken, or, without accumulate, (value, {{name: gradient}})"
        )
    if isinstance(output, list):
        if not output:
            raise ArgumentError("loss returned an empty list; it must return a scalar, or a list with at least one")
        return [torch.stack([_scalar(part).reshape(()) for part in output]).mean()], False
    return [_scalar(output)], False


def parts_of(output: Any) -> Iterable[Any]:
    """What a loss returned for one batch of several, as one part, which counts as much as that of each other batch.

    Raises:
        ArgumentError: as `losses_of` does.
    """
    if isinstance(output, Generator):
        return [OneOfSeveral(output)]
    return losses_of(output)[0]


def _way_to_a_scalar(value: Any) -> str:
    """What to do in a loss that returned something else."""
    if value is None:
        return "is a return missing? the run itself calls backward"
    if isinstance(value, Mapping):
        return "return the loss in it alone"
    return "leave out .item()" if isinstance(value, int | float) else "take .mean() or .sum()"


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        form = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"{a_type(value)}"
        raise ArgumentError(f"loss returned {form}; it must return a scalar tensor ({_way_to_a_scalar(value)})")
    if value.is_complex():
        raise ArgumentError(f"loss returned a {value.dtype} value; it must return a real one (take .real or .abs())")
    if not value.requires_grad:
        raise ArgumentError(
            "loss returned a value that no parameter of the model takes part in; nothing can be trained"
        )
    return value


def autograd_gradients(output: Any, parameters: Sequence[nn.Parameter]) -> tuple[float, list[Tensor | None]]:
    """(loss, gradients) by `torch.autograd.grad`, which leaves every `.grad` alone.

    A list of losses is averaged; a generator's are differentiated one at a time, each graph freed before the next is
    built, and the sum divided by their count.
    """
    scalars, streamed = losses_of(output)
    inputs = tuple(parameters)
    if not streamed:  # one scalar, as nearly every loss is: nothing to add up
        (scalar,) = scalars
        gradients = [*differentiate(scalar, inputs)]
        return 0.0 + scalar.item(), gradients
    total, count = 0.0, 0
    sums: list[Tensor | None] = [None] * len(inputs)
    for part in scalars:
        if isinstance(part, OneOfSeveral):
            value, gradients = autograd_gradients(part.scalars, parameters)
        else:
            gradients = [*differentiate(part, inputs)]
            value = part.item()
        _add(sums, gradients)
        total, count = total + value, count + 1
    return _averaged(total, count, sums)


def _add(sums: list[Tensor | None], gradients: list[Tensor | None]) -> None:
    """Add gradients to their sums; each is let go of as it is added, so that memory holds both but no third."""
    for i, held in enumerate(sums):
        gradient, gradients[i] = gradients[i], None
        if gradient is not None:
            sums[i] = gradient if held is None else held + gradient


def differentiate(scalar: Tensor, parameters: tuple[nn.Parameter, ...] = ()) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad(scalar, parameters, allow_unused=True)`, or `scalar.backward()` where none are given.

    By the engine that both call: the checks that they make in Python before, of which `_scalar` has made those that
    matter here, take a third as long as the backward pass of a small model. A parameter that has been frozen since
    has no gradient.
    """
    start = (torch.ones_like(scalar),)
    try:
        gradients: tuple[Tensor | None, ...] = _run_backward(
            (scalar,), start, False, False, parameters, allow_unreachable=True, accumulate_grad=not parameters
        )
    except RuntimeError:
        free = tuple(parameter for parameter in parameters if parameter.requires_grad)
        if len(free) == len(parameters):
            raise
        found = iter(differentiate(scalar, free) if free else ())  # nothing was computed before that was looked at
        return tuple([next(found) if parameter.requires_grad else None for parameter in parameters])
    return gradients


def backward_gradients(output: Any, parameters: Sequence[nn.Parameter]) -> tuple[float, list[Tensor | None]]:
    """The same by `backward()` into `.grad`, which is empty before and after."""
    scalars, streamed = losses_of(output)
    total, count = 0.0, 0
    for parameter in parameters:
        parameter.grad = None
    for part in scalars:
        if isinstance(part, OneOfSeveral):
            value = _add_apart(part, parameters)
        else:
            differentiate(part)
            value = part.item()
        total, count = total + value, count + 1
    sums = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return _averaged(total, count, sums) if streamed else (total, sums)


def _add_apart(batch: OneOfSeveral, parameters: Sequence[nn.Parameter]) -> float:
    """Add the mean of what one batch yields to what is in `.grad`; returns that of its values."""
    before = [parameter.grad for parameter in parameters]
    value, gradients = backward_gradients(batch.scalars, parameters)
    _add(before, gradients)
    for parameter, total in zip(parameters, before, strict=True):
        parameter.grad = total
    return value


def _averaged(total: float, count: int, sums: list[Tensor | None]) -> tuple[float, list[Tensor | None]]:
    """The means of what a generator of losses came to.

    Raises:
        ArgumentError: it yielded none.
    """
    if count == 0:
        raise ArgumentError("loss yielded nothing; a generator of losses must yield at least one")
    return total / count, [None if gradient is None else gradient / count for gradient in sums]
