"""One pass over index arrays, compiled: are they inside, and which rows do they name?"""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def outside(flat, rows):  # type: ignore[no-untyped-def]
    """The place of the first index that is not from 0 to rows − 1; −1 where all are."""
    for i in range(len(flat)):
        if flat[i] < 0 or flat[i] >= rows:
            return i
    return -1


@njit(nogil=True, cache=True)
def number_rows(flat, marks, stamp, named, count, numbers):  # type: ignore[no-untyped-def]
    """Give each row that `flat` names a number, from `count` on, in the order in which rows first come.

    Args:
        flat: int (n,).
        marks: int64 (rows,): stamp × 2^32 + number of a row that has one; smaller where it has none.
        stamp: of this ticket; larger than those before.
        named: int64, to be filled with the rows from place `count` on.
        count: rows that have a number already.
        numbers: int (n,), to be filled with the number of each.

    Returns:
        How many rows have a number now; −1 where one is outside.
    """
    for i in range(len(flat)):
        row = flat[i]
        if row < 0 or row >= len(marks):
            return -1
        if marks[row] >> 32 != stamp:
            marks[row] = (stamp << 32) | count
            named[count] = row
            count += 1
        numbers[i] = marks[row] & 0xFFFFFFFF
    return count
