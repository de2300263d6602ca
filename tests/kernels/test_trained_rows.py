"""Rows that a ticket trains are read and written by compiled passes as by torch and numpy, to the bit, whoever died."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from hypothesis import given
from hypothesis import strategies as st
from tables import name_half

from hogwild.kernels.trained_rows import TrainedRows
from hogwild.shared.arena import Arena
from hogwild.shared.layout import Layout
from hogwild.shared.tables import RowTable, TableForm

ROWS, WIDTH, STALENESS = 24, 3, 2
START, SOME, HALF, TORN, WRITTEN, DONE = range(6)

attempts = st.tuples(
    st.lists(st.integers(0, ROWS - 1), max_size=20, unique=True),
    st.sampled_from([START, SOME, HALF, TORN, WRITTEN, DONE, DONE, DONE, DONE]),
)


def a_table(dtype: torch.dtype = torch.float32) -> RowTable:
    layout = Layout.of([("table", torch.zeros(ROWS, WIDTH, dtype=dtype))])
    form = TableForm.of(layout.entries[0], {})
    table = RowTable(form, STALENESS + 1, Arena(RowTable.size(form, STALENESS + 1)[0]), 0, nullcontext)
    table.values.copy_(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)))
    return table


def in_torch(table: RowTable, made: int, rows: torch.Tensor, version: int, after: torch.Tensor) -> None:
    """What the generic step makes of a difference: p − (before − after), with a learning rate of 1."""
    difference = table.read(rows, version) - after
    table.log(made, rows)
    table.values[rows] -= difference


def assert_readable(table: RowTable, other: RowTable, versions: range) -> None:
    """Every version that somebody may read is the same in both, by the passes and by torch."""
    trained, some = TrainedRows(table), np.array([3, 0, 5, 1])
    for version in versions:
        found = np.empty((len(some), WIDTH), np.float32)
        trained.read(some, version, found)
        expected = other.read(torch.from_numpy(some), version)
        assert torch.equal(torch.from_numpy(found).view(torch.int32), expected.view(torch.int32))
        assert torch.equal(table.read(torch.from_numpy(some), version).view(torch.int32), expected.view(torch.int32))


@given(st.lists(attempts, max_size=30))
def test_the_passes_are_the_steps_in_torch_to_the_bit(program: list[tuple[list[int], int]]) -> None:
    """Versions are made by the passes, left half made and made again by updates of other rows; the other table is
    stepped in torch, and nobody dies."""
    table, other, head = a_table(), a_table(), 0
    trained = TrainedRows(table)
    for number, (rows, until) in enumerate(program):
        made, version, own = head + 1, max(0, head - STALENESS), np.array(rows, np.int64)
        after = np.empty((len(rows), WIDTH), np.float32)
        trained.read(own, version, after)
        after += np.float32(0.1) * np.float32(number + 1) * np.arange(WIDTH, dtype=np.float32)
        table.begin(made)
        words, values = table.newest.copy(), table.values.clone()
        size = len(own) // 2 if until == SOME else len(own)
        if until > START:
            assert trained.write(made, own[:size], version, after[:size])
        if until == HALF:
            table.values.copy_(values)
            name_half(table, words, rows)
        if until == TORN:
            table.values[torch.from_numpy(own)] = torch.nan
        if until == DONE:
            other.begin(made)
            in_torch(other, made, torch.from_numpy(own), version, torch.from_numpy(after))
            head = made
            assert torch.equal(table.values.view(torch.int32), other.values.view(torch.int32))
        assert_readable(table, other, range(max(0, head - STALENESS), head + 1))
    table.begin(head + 1)  # what the last one left is put back
    assert torch.equal(table.values.view(torch.int32), other.values.view(torch.int32))


def test_a_version_that_is_not_logged_any_more_cannot_be_read() -> None:
    table = a_table()
    trained, rows = TrainedRows(table), np.arange(2)
    for made in range(1, STALENESS + 3):
        table.begin(made)
        assert trained.write(made, rows, made - 1, np.ones((2, WIDTH), np.float32))
    with pytest.raises(RuntimeError, match="version 0 of a table cannot be read any more"):
        trained.read(rows, 0, np.empty((2, WIDTH), np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_ends_the_writing_and_what_is_written_can_be_put_back(
    wrong: float, dtype: torch.dtype
) -> None:
    table = a_table(dtype)
    trained, rows, before = TrainedRows(table), np.arange(ROWS), table.values.clone()
    after = np.full((ROWS, WIDTH), np.finfo(before.numpy().dtype).max, before.numpy().dtype)
    after[-1, -1] = wrong
    table.begin(1)
    assert not trained.write(1, rows, 0, after)
    assert not torch.equal(table.values, before)
    table.begin(1)
    assert torch.equal(table.values, before)
    assert trained.write(1, rows[:-1], 0, after[:-1])
    assert trained.write(1, rows[-1:], 0, after[-1:], check=False)
    assert torch.equal(table.values[-1, -1].isfinite(), torch.tensor(False))
