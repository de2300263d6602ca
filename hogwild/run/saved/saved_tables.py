"""Tables in a checkpoint: each column at the version that is saved, and the logs that lead back to older ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hogwild.shared.state import SharedState


def tables_at(state: SharedState, version: int, window: range) -> dict[str, Tensor]:
    """Copies of the tables at a version, and of the logs by which the older ones of the window are read."""
    tensors: dict[str, Tensor] = {}
    for i, table in state.tables.items():
        for key, column in table.columns.items():
            tensors[_column(i, key)] = copy = torch.empty_like(column, memory_format=torch.contiguous_format)
            table.copy_at(version, copy, key)
        for made in _logs(window):
            tensors |= {_logged(i, made, key): value for key, value in table.logged(made).items()}
    return tensors


def restore_tables(state: SharedState, window: range, saved: Callable[[str], Tensor]) -> None:
    """Put tables and logs back, before any worker starts; `saved` gives a tensor by its name.

    Raises:
        ValueError: a tensor has another form than the table.
    """
    for i, table in state.tables.items():
        for key, column in table.columns.items():
            value = saved(_column(i, key))
            if value.shape != column.shape or value.dtype != column.dtype:
                raise ValueError(f"table {i} holds {value.dtype} {list(value.shape)} as {key}")
            column.copy_(value)
        for made in _logs(window):
            table.log_again(made, {key: saved(_logged(i, made, key)) for key in ("rows", *table.columns)})


def _logs(window: range) -> range:
    """The versions whose logs are needed: all but the oldest that is read."""
    return range(window.start + 1, window.stop)


def _column(i: int, key: str) -> str:
    return f"table {i} {key}"


def _logged(i: int, made: int, key: str) -> str:
    return f"table {i} log {made} {key}"
