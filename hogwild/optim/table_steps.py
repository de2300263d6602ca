"""The step of a version's tables: on private copies of the rows that its gradient names, which are then written.

    take rows → step the copies → log what the rows hold → write them

Invariant: the step sees a table of n rows and a gradient that names them all, so it costs what they cost, and what it
computes in a row is what it would compute in the table.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.optim.gradients import Gathered
from hogwild.shared.optimizer_state import PARAMETER, OptimizerState
from hogwild.shared.slots import Slot
from hogwild.shared.tables import RowTable


class TableSteps:
    """What makes one version of the tables; `begin` of each is called at once.

    Args:
        tables: by the positions of their parameters.
        made: the version.
    """

    def __init__(self, tables: Mapping[int, RowTable], made: int) -> None:
        self._tables = tables
        self._made = made
        self._rows: dict[int, Tensor] = {}
        self._copies: dict[int, dict[str, Tensor]] = {}
        for table in tables.values():
            table.begin(made)

    def taken(self, gradients: Gathered) -> Gathered:
        """The gradients, of which those of tables are in terms of the rows that were taken."""
        own = list(gradients.tensors)
        for i, table in self._tables.items():
            gradient = own[i]
            if gradient is None:
                continue
            self._rows[i], own[i] = _numbered_anew(gradient, table.rows)
            self._copies[i] = table.take(self._made, self._rows[i])
        return Gathered(own, gradients.flats)

    def slot(self, slot: Slot) -> Slot:
        """The slot with the copies in place of tables."""
        one = copy.copy(slot)
        one.parameters = [
            self._copies[i][PARAMETER] if i in self._copies else value for i, value in enumerate(slot.parameters)
        ]
        return one

    def state(self, state: OptimizerState) -> OptimizerState:
        """The optimizer's state with that of the copies, where any is kept by row."""
        if all(own.keys() == {PARAMETER} for own in self._copies.values()):
            return state
        one = copy.copy(state)
        one.tensors = [
            {**own, **{key: value for key, value in self._copies.get(i, {}).items() if key != PARAMETER}}
            for i, own in enumerate(state.tensors)
        ]
        return one

    def keep(self) -> None:
        """Log what the rows hold."""
        for i, rows in self._rows.items():
            self._tables[i].keep(self._made, rows)

    def store(self) -> None:
        """Write the rows, as the copies have become."""
        for i, rows in self._rows.items():
            self._tables[i].store(rows, self._copies[i])


def _numbered_anew(gradient: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(the rows that a gradient of a table of so many rows names, each once and in order; the gradient of those)."""
    if gradient.is_sparse and gradient.sparse_dim() != 1:
        gradient = gradient.to_dense()
    if not gradient.is_sparse:
        return torch.arange(rows), gradient
    named, values = gradient._indices(), gradient._values()
    if gradient.is_coalesced():
        own, places = named[0], torch.arange(len(values))
    else:
        own, places = map(torch.from_numpy, _unique(named[0].numpy()))
    form = (len(own), *gradient.shape[1:])
    new = torch.sparse_coo_tensor(
        places[None], values, form, is_coalesced=gradient.is_coalesced(), check_invariants=False
    )
    return own, new


def _unique(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """`np.unique` with the inverse, whose calls take longer than its work for the few rows of an update."""
    order = rows.argsort()
    ordered = rows[order]
    first = np.ones(len(rows), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    places = np.empty_like(order)
    places[order] = first.cumsum() - 1
    return ordered[first], places
