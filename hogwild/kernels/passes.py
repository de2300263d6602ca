"""Passes over rows of a table and over its logs, compiled: what `hogwild.shared.tables` has in torch and numpy, to the
bit.

A pass does few rows at a time, for what was touched last is still near: rows come from memory once to be read, and once
to be logged, named and written.

Shapes: R rows of a table, D width, n rows that a ticket names, L logs. A word is version × 2^32 + entry.
"""

from __future__ import annotations

from numba import njit

from hogwild.kernels.memory import LINE, fence, prefetch_to_write

_FEW = 8  # rows that a pass does at a time, and by which it looks ahead


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def finite(row):  # type: ignore[no-untyped-def]
    """True where no element of a row (D,) is NaN or infinite: the sum of x − x is 0, in any order."""
    total = row[0] - row[0]
    for d in range(len(row)):
        total += row[d] - row[d]
    return total == 0


@njit(nogil=True, cache=True)
def read_rows(values, newest, versions, before, old, rows, version, into):  # type: ignore[no-untyped-def]
    """into[i] = values[rows[i]] at a version: the value first, then the word, then what the logs kept.

    Args:
        values, newest: (R, D) and int64 (R,): the table and its words.
        versions: int64 (L, 2), in its first column the version that each log is of.
        before, old: int64 (L, R) and (L, R, D), the words and values that entries keep.
        rows, version: which, int64 (n,), and when.
        into: (n, D), to be filled.

    Returns:
        A version that would be needed and is not logged any more; 0 where none is.
    """
    seen = (version << 32) | 0xFFFFFFFF
    for start in range(0, len(rows), _FEW):
        end = min(start + _FEW, len(rows))
        for i in range(start, end):
            own, target = values[rows[i]], into[i]
            for d in range(len(own)):
                target[d] = own[d]
        fence()
        for i in range(start, end):
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
def write_rows(values, newest, versions, named, before, old, made, rows, version, after, check):  # type: ignore[no-untyped-def]
    """values[row] += after − what the row held at that version; of a few rows at a time, log → words → values.

    Args:
        values, newest, versions, before, old: as above; the second column of `versions` counts the entries of a log.
        named: int64 (L, R), the rows of the entries.
        made: the version that is being made, which was begun.
        rows: int64 (n,), each once.
        version: at which the rows were read.
        after: (n, D), what became of them.
        check: stop where `after` is not finite.

    Returns:
        True where all is written; False where a value is NaN or infinite, and what came before it is written.
    """
    seen, place, count = (version << 32) | 0xFFFFFFFF, made % len(versions), len(rows)
    own_named, own_before, own_old, last = named[place], before[place], old[place], versions[place, 1]
    address, stride, width = values.ctypes.data, values.strides[0], values.shape[1] * values.itemsize
    for start in range(0, count, _FEW):
        end = min(start + _FEW, count)
        if check:
            for i in range(start, end):
                if not finite(after[i]):
                    return False
        first = last
        for i in range(start, end):
            if i + _FEW < count:
                for byte in range(0, width, LINE):
                    prefetch_to_write(address + rows[i + _FEW] * stride + byte)
            row = rows[i]
            word = newest[row]
            if word >> 32 < made:
                own_named[last], own_before[last] = row, word
                own, kept = values[row], own_old[last]
                for d in range(len(own)):
                    kept[d] = own[d]
                last += 1
        versions[place, 1] = last
        fence()
        for entry in range(first, last):
            newest[own_named[entry]] = (made << 32) | entry
        fence()
        for i in range(start, end):
            word = newest[rows[i]]
            log, entry = (word >> 32) % len(versions), word & 0xFFFFFFFF
            while before[log, entry] > seen:
                word = before[log, entry]
                log, entry = (word >> 32) % len(versions), word & 0xFFFFFFFF
            own, base, became = values[rows[i]], old[log, entry], after[i]
            for d in range(len(own)):
                own[d] += became[d] - base[d]
    return True
