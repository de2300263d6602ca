"""A parameter of a replica whose rows are read at a version, out of the one copy of its table that there is.

    F.embedding, F.embedding_bag    gather the rows that they are given; the gradient is sparse, with those rows
    anything else that computes     sees a whole copy of the table at that version, made for it

Invariant: no value is read but through the table's reader, so what a replica computes with is of one version, whatever
is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hogwild.shared.state import SharedState
from hogwild.shared.tables import RowTable


class RowParameter(nn.Parameter):
    """A table of a replica; `version` is the one that is read.

    Its memory is that of the newest version, which somebody may be writing: `.data` is for its shape alone.
    """

    table: RowTable
    version: int = 0

    @classmethod
    def on(cls, table: RowTable, view: Tensor) -> RowParameter:
        """One on that table, which lies in `view`."""
        parameter: RowParameter = cls(view)
        parameter.table = table
        return parameter

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls for every function that is given one."""
        with torch._C.DisableTorchFunctionSubclass():
            by_rows = _BY_ROWS.get(function)
            if by_rows is not None:
                return by_rows(*args, **kwargs or {})
            if function in _OF_THE_FORM:
                return function(*args, **kwargs or {})
            return function(*_seen_whole(args), **{key: _seen_whole(value) for key, value in (kwargs or {}).items()})

    def rows_now(self, rows: Tensor) -> Tensor:
        """Those rows at the version, in memory of the caller's."""
        return self.table.read(rows, self.version)


def rows_at(parameter: nn.Parameter, rows: Tensor) -> Tensor:
    """Some rows of a replica's parameter, in memory of the caller's; `rows` is int64 of shape (n,)."""
    if isinstance(parameter, RowParameter):
        return parameter.rows_now(rows)
    return parameter.detach().index_select(0, rows)


def parameters_on(state: SharedState) -> list[nn.Parameter]:
    """The trained parameters of a replica on shared memory, in layout order."""
    return [
        RowParameter.on(state.tables[i], view) if i in state.tables else nn.Parameter(view)
        for i, view in enumerate(state.slots[0].parameters)
    ]


class _Rows(torch.autograd.Function):
    """(table, rows) → values (n, …)."""

    @staticmethod
    def forward(ctx: Any, parameter: RowParameter, rows: Tensor) -> Tensor:
        ctx.rows, ctx.shape = rows, parameter.shape
        return parameter.rows_now(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows, values = ctx.rows, gradient
        if gradient.is_sparse:
            rows, values = rows[gradient._indices()[0]], gradient._values()
        return torch.sparse_coo_tensor(rows[None], values, ctx.shape, check_invariants=False), None


class _Whole(torch.autograd.Function):
    """The whole table at the version, as a copy."""

    @staticmethod
    def forward(ctx: Any, parameter: RowParameter) -> Tensor:  # noqa: ARG004
        copy = torch.empty(parameter.shape, dtype=parameter.dtype)
        parameter.table.copy_at(parameter.version, copy)
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


def _seen_whole(value: Any) -> Any:
    """Arguments in which each table is a copy of all of it."""
    if isinstance(value, RowParameter):
        return _Whole.apply(value)  # type: ignore[no-untyped-call]
    if isinstance(value, tuple | list):
        return type(value)(_seen_whole(one) for one in value)
    return value


def _embedding(
    input: Tensor,  # noqa: A002 - torch calls it so
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding`; where its gradient is to be dense, it is that of the whole table."""
    dense = not sparse and torch.is_grad_enabled() and weight.requires_grad
    if dense or max_norm is not None or scale_grad_by_freq or not isinstance(weight, RowParameter):
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return functional.embedding(_seen_whole(input), _seen_whole(weight), *options)
    values = functional.embedding(input, weight, padding_idx, None, norm_type, False, sparse)
    weight.table.put_back(values, input, weight.version)
    return values


def _embedding_bag(
    input: Tensor,  # noqa: A002 - torch calls it so
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag` of the rows that are named, which are numbered anew; likewise."""
    dense = not sparse and torch.is_grad_enabled() and weight.requires_grad
    if dense or max_norm is not None or scale_grad_by_freq or not isinstance(weight, RowParameter):
        rest = (max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset)
        return functional.embedding_bag(_seen_whole(input), _seen_whole(weight), offsets, *rest, padding_idx)
    places = torch.arange(input.numel()).view(input.shape)
    padding = None
    if padding_idx is not None:
        padded = (input == padding_idx % len(weight)).reshape(-1)
        if bool(padded.any()):
            padding = int(padded.nonzero()[0])
            places.view(-1)[padded] = padding
    values = _Rows.apply(weight, input.reshape(-1).long())  # type: ignore[no-untyped-call]
    rest = (None, norm_type, False, mode, sparse, per_sample_weights, include_last_offset)
    return functional.embedding_bag(places, values, offsets, *rest, padding)


_BY_ROWS: Mapping[Any, Callable[..., Tensor]] = {
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
}
_GETTERS = ("shape", "ndim", "dtype", "device", "layout", "data", "grad", "grad_fn", "requires_grad", "is_leaf")
_ABOUT = ("is_sparse", "is_cuda", "is_quantized", "is_meta", "retains_grad", "_version", "_backward_hooks")
_METHODS = ("size", "dim", "numel", "stride", "element_size", "is_contiguous", "is_complex", "is_floating_point")
_OTHERS = ("is_shared", "register_hook", "requires_grad_", "retain_grad", "__len__", "__hash__", "data_ptr")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
_FUNCTIONS = (
    torch.autograd.grad,
    torch.autograd.backward,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
    torch.empty_like,
    torch.zeros_like,
    torch.ones_like,
    torch.full_like,
)
_OF_THE_FORM: frozenset[Any] = frozenset(
    [
        *_FUNCTIONS,
        *(getattr(Tensor, name) for name in (*_METHODS, *_OTHERS, *_NEW)),
        *(getattr(Tensor, name).__get__ for name in (*_GETTERS, *_ABOUT)),
        *(getattr(Tensor, name).__set__ for name in ("data", "grad", "requires_grad")),
    ]
)
"""What asks for the form of a table, or about its gradient, and for no value of it."""
