"""Gradients given by name: a tensor, or the rows of a table and their values.

What is given is looked at before anything of it is used, so a wrong index is an error and never a store elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hogwild.errors import ArgumentError, a_type, some_of
from hogwild.shared.layout import Entry


def named_gradients(
    given: Mapping[str, Any], names: Sequence[str], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """One gradient, or None, for each parameter, of those given by the parameter's name.

    Args:
        given: name → a tensor of the parameter's shape, dense or sparse, or (rows, values): int64 of shape (n,) and the
            table's dtype of shape (n, …), on whose memory the gradient then lies. A row may come twice.
        names, parameters: of the trained parameters, in layout order.

    Raises:
        ArgumentError: a name is none of theirs, or a form does not fit; the message names both.
    """
    unknown = [str(name) for name in given if name not in names]
    if unknown:
        raise ArgumentError(
            f"a gradient of {some_of(unknown)} was given, which is no trained parameter; those are {some_of(names)}"
        )
    return [_gradient(n, given.get(n), p) for n, p in zip(names, parameters, strict=True)]


def listed_gradients(
    given: Sequence[Tensor | None] | Tensor, order: Sequence[int], names: Sequence[str], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """The same of those given one after the other; `order`: the position in the layout of each.

    Raises:
        ArgumentError: there are more or fewer, or a form does not fit; the message names it.
    """
    values: list[Tensor | None] = [None] * len(order)
    if isinstance(given, Tensor) and (given.dim() == 0 or len(given) != len(order)):
        raise ArgumentError(
            f"gradient is one tensor of shape {list(given.shape)}; pass a list of one tensor, or None, for each "
            f"trained parameter, as torch.autograd.grad(loss, list(replica.parameters())) gives it"
        )
    given = [*given]
    if len(given) != len(order):
        raise ArgumentError(
            f"gradients given: {len(given)}, trained parameters: {len(order)}; one each, or None, works"
        )
    for i, value in zip(order, given, strict=True):
        if value is not None:
            _refuse_other_form(names[i], value, parameters[i])
            values[i] = value
    return values


def _refuse_other_form(name: str, value: Any, parameter: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentError(f"the gradient of {name} is {a_type(value)}; a tensor or None works")
    if value.shape != parameter.shape or value.dtype != parameter.dtype:
        raise ArgumentError(
            f"the gradient of {name} is {value.dtype} of shape {list(value.shape)}; {parameter.dtype} of shape "
            f"{list(parameter.shape)} works, or by name (rows, values)"
        )
    if value.is_sparse:
        for numbers, count in zip(value._indices(), value.shape, strict=False):
            checked_rows(name, numbers, count)


def rows_of_parameter(name: str, rows: Any, names: Sequence[str], entries: Sequence[Entry]) -> tuple[int, Tensor]:
    """(position of the trained parameter of that name, checked numbers of rows of it).

    Raises:
        ArgumentError: there is none, or a row is none of its.
    """
    if name not in names:
        raise ArgumentError(f"{name!r} is no trained parameter; those are {some_of(names)}")
    i = names.index(name)
    shape = entries[i].shape
    return i, checked_rows(name, rows, shape[0] if shape else 0)


def checked_rows(name: str, rows: Any, count: int) -> Tensor:
    """Row numbers of a table of so many rows, as an int64 tensor of shape (n,).

    Raises:
        ArgumentError: they are not whole numbers in one dimension, or one is outside.
    """
    numbers: Tensor = torch.as_tensor(rows)
    if numbers.dtype != torch.int64 or numbers.dim() != 1:
        form = f"{numbers.dtype} of shape {list(numbers.shape)}"
        raise ArgumentError(f"rows of {name} are {form}; int64 of shape [n] works")
    if numbers.numel():
        least, most = (int(end) for end in torch.aminmax(numbers))
        wrong = least if least < 0 else most
        if not 0 <= wrong < count:
            raise ArgumentError(f"row {wrong} of {name}, which has {count}: 0 to {count - 1} work")
    return numbers


def is_told(output: Any) -> bool:
    """True where a loss told its value and its gradients, instead of a scalar to differentiate."""
    return isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping)


def _gradient(name: str, given: Any, parameter: Tensor) -> Tensor | None:
    if given is None:
        return None
    if not isinstance(given, tuple):
        value: Tensor = torch.as_tensor(given).detach()
        _refuse_other_form(name, value, parameter)
        return value
    if len(given) != 2 or not parameter.dim():
        raise ArgumentError(f"the gradient of {name} is a tuple of {len(given)}; a table's is (rows, values)")
    rows = checked_rows(name, given[0], len(parameter))
    values = torch.as_tensor(given[1]).detach()
    form = (len(rows), *parameter.shape[1:])
    if values.shape != form or values.dtype != parameter.dtype:
        raise ArgumentError(
            f"the values of {len(rows)} rows of {name} are {values.dtype} of shape {list(values.shape)}; "
            f"{parameter.dtype} of shape {list(form)} works"
        )
    return torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
