"""The step of a version's tables: in place, once what the rows held that the gradients name is logged.

Invariant: a step by a sparse gradient reads and writes the rows that it names, so it costs what they cost; and whoever
finds it half done puts back what the logs hold (`hogwild.shared.tables`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hogwild.optim.gradients import Gathered
from hogwild.shared.optimizer_state import PARAMETER, OptimizerState
from hogwild.shared.tables import RowTable


class TableSteps:
    """Logs the rows of a version; `states` are the copies of the optimizer's state, with that of the rows.

    Args:
        tables: by the positions of their parameters.
        states: the copies, of which each has all but that.
    """

    def __init__(self, tables: Mapping[int, RowTable], states: Sequence[OptimizerState]) -> None:
        self._tables = tables
        self.states = [self._with_rows(state) for state in states]

    def begin(self, made: int) -> None:
        """First of all: that version of the tables is about to be made."""
        for table in self._tables.values():
            table.begin(made)

    def log(self, made: int, gradients: Gathered) -> Gathered:
        """Log what is about to be written; the gradients, each by rows or dense."""
        own = list(gradients.tensors)
        for i, table in self._tables.items():
            gradient = own[i]
            if gradient is None:
                continue
            if gradient.is_sparse and gradient.sparse_dim() != 1:
                gradient = own[i] = gradient.to_dense()
            table.log(made, gradient._indices()[0] if gradient.is_sparse else torch.arange(table.rows))
        return Gathered(own, gradients.flats)

    def _with_rows(self, state: OptimizerState) -> OptimizerState:
        one = copy.copy(state)
        one.tensors = [{**own, **self._state_of_rows(i)} for i, own in enumerate(state.tensors)]
        return one

    def _state_of_rows(self, i: int) -> dict[str, Tensor]:
        columns = self._tables[i].columns if i in self._tables else {}
        return {key: column for key, column in columns.items() if key != PARAMETER}
