"""Passes over rows of a table and over its logs, compiled: what `hogwild.shared.tables` has in torch and numpy, to the
bit.

What must be seen in an order is written by different calls: a compiler may put stores of one call in another order.

Shapes: R rows of a table, D width, n rows that a ticket names, L logs. A word is version × 2^32 + entry.
"""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def copy_rows(values, newest, rows, version, into):  # type: ignore[no-untyped-def]
    """into[i] = values[rows[i]], but for rows that a later version has named already: those are put back in any case.

    Args:
        values, newest: (R, D) and int64 (R,): the table and its words.
        rows, version: which, int64 (n,), and when.
        into: (n, D), to be filled.
    """
    seen = (version << 32) | 0xFFFFFFFF
    for i in range(len(rows)):
        if newest[rows[i]] <= seen:
            own, target = values[rows[i]], into[i]
            for d in range(len(own)):
                target[d] = own[d]


@njit(nogil=True, cache=True)
def put_back(newest, versions, before, old, rows, version, into):  # type: ignore[no-untyped-def]
    """Give rows that later versions wrote what they held at that version.

    Args:
        newest: int64 (R,), the words.
        versions: int64 (L, 2), in its first column the version that each log is of.
        before, old: int64 (L, R) and (L, R, D), the words and values that entries keep.
        rows, version: which, int64 (n,), and when.
        into: (n, D), as they were copied.

    Returns:
        A version that would be needed and is not logged any more; 0 where none is.
    """
    seen = (version << 32) | 0xFFFFFFFF
    for i in range(len(rows)):
        word = newest[rows[i]]
        while word > seen:
            log, entry = (word >> 32) % len(versions), word & 0xFFFFFFFF
            if versions[log, 0] != word >> 32:
                return word >> 32
            word = before[log, entry]
            if word <= seen:
                kept, target = old[log, entry], into[i]
                for d in range(len(target)):
                    target[d] = kept[d]
    return 0


@njit(nogil=True, cache=True)
def log_rows(values, newest, made, rows, first, named, before, old):  # type: ignore[no-untyped-def]
    """Log what those rows hold that the version which is being made has not named yet.

    Args:
        values, newest: (R, D) and int64 (R,): the table and its words.
        made: the version.
        rows: int64 (n,), each once.
        first: entries that the log has.
        named, before, old: int64 (R,), int64 (R,) and (R, D): the log.

    Returns:
        How many entries it has now.
    """
    for i in range(len(rows)):
        row = rows[i]
        word = newest[row]
        if word >> 32 < made:
            named[first], before[first] = row, word
            own, kept = values[row], old[first]
            for d in range(len(own)):
                kept[d] = own[d]
            first += 1
    return first


@njit(nogil=True, cache=True)
def name_rows(newest, made, first, last, named):  # type: ignore[no-untyped-def]
    """Let the words of the rows in entries from `first` up to `last` name them."""
    for entry in range(first, last):
        newest[named[entry]] = (made << 32) | entry


@njit(nogil=True, cache=True)
def finite(values):  # type: ignore[no-untyped-def]
    """True where no element of values (n, D) is NaN or infinite."""
    wrong = 0
    for i in range(len(values)):
        own = values[i]
        for d in range(len(own)):
            wrong |= own[d] - own[d] != 0
    return wrong == 0


@njit(nogil=True, cache=True)
def add_changes(values, newest, before, old, rows, version, after):  # type: ignore[no-untyped-def]
    """values[row] += after − what the row held at that version; each row has been logged and named.

    Args:
        values, newest, before, old: as above.
        rows: int64 (n,), each once.
        version: at which the rows were read.
        after: (n, D), what became of them.
    """
    seen = (version << 32) | 0xFFFFFFFF
    for i in range(len(rows)):
        word = newest[rows[i]]
        log, entry = (word >> 32) % len(before), word & 0xFFFFFFFF
        while before[log, entry] > seen:
            word = before[log, entry]
            log, entry = (word >> 32) % len(before), word & 0xFFFFFFFF
        own, base, became = values[rows[i]], old[log, entry], after[i]
        for d in range(len(own)):
            own[d] += became[d] - base[d]
