"""Tables by version: one copy of each, and what the last updates overwrote in it.

    newest[row]    one word: the version that wrote the row last, and the entry of that version's log; 0: none
    log of v       of each row that version v wrote: its number, what it held before, and the word that it had before
                   a ring: that of version v lies at v mod L

    writer         makes version v, alone: log → words → (fence) → values, in place; v is published after that
    reader         at a version: values → (fence) → whether a later version was begun → words; where a word names a
                   later version than that, what its entry kept, or the entry that it had before, and so on while that
                   is later too

What holds whoever is fast, slow or killed: a reader gets the row as it was at its version. If a value that it read is
of a later version, or half of it, that version was begun, and the word that it reads afterwards names it. A word holds
the version itself, so that no log that was reused is followed: a version that is later than the reader's is one of the
next L. For that the rule sees to it that version v is not begun while somebody reads at v − L − 1 or before.
Who finds that a version was begun, by somebody who died, first puts back what its log kept, in the rows that its words
name. The words stay, for a reader may have seen a value of that version; it finds in the log what is put back. So the
version may be made by another update, of other rows. Memory and time of an update follow its rows, not the table.

Loads are not reordered with loads, nor stores with stores, on x86-64; elsewhere the fence is a lock: a reader that let
it go before the writer took it has loaded its values before any is stored.

Legend: R rows of a table, n rows that an update names, L logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.shared.arena import Arena, Space
from hogwild.shared.layout import Entry
from hogwild.shared.optimizer_state import PARAMETER, Cell, StateForm

_BITS = 32  # of a word, for the entry; what is above them is the version
_ENTRY = (1 << _BITS) - 1
_PIECE = 1 << 14  # rows that are copied at once
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Ordering = Callable[[], AbstractContextManager[object]]
Words = NDArray[np.int64]


@dataclass(frozen=True)
class TableForm:
    """A table and the optimizer's state of its rows: `columns[key]` is (dtype, shape, stride) of a tensor with R rows;
    the table itself is the one called `PARAMETER`."""

    rows: int
    columns: Mapping[str, Cell]

    @classmethod
    def of(cls, entry: Entry, state: Mapping[str, Cell]) -> TableForm:
        """That of a parameter and of its state by row."""
        return cls(entry.shape[0], {PARAMETER: Cell(entry.dtype, entry.shape, entry.stride), **state})


class RowTable:
    """One table in shared memory; see above. Called without grad mode.

    Args:
        form: of the table.
        logs: how many there are (L).
        arena, offset: where it lies.
        ordering: the fence.
    """

    def __init__(self, form: TableForm, logs: int, arena: Arena, offset: int, ordering: Ordering) -> None:
        self.rows = form.rows
        self.ordering = ordering
        places = _Places(form, logs)
        self.columns = {
            key: arena.tensor(offset + place, torch.Size(cell.shape).numel(), cell.dtype).as_strided(
                cell.shape, cell.stride or (1,)
            )
            for (key, cell), place in zip(form.columns.items(), places.columns, strict=True)
        }
        int64 = np.dtype(np.int64)
        self.newest: Words = arena.array(offset + places.newest, form.rows, int64)
        old = {
            key: arena.tensor(offset + place, logs * torch.Size(cell.shape).numel(), cell.dtype).view(logs, *cell.shape)
            for (key, cell), place in zip(form.columns.items(), places.old, strict=True)
        }
        self.logs = TableLogs(
            words=arena.array(offset + places.words, 2 * logs, int64).reshape(logs, 2),
            rows=arena.array(offset + places.rows, form.rows * logs, int64).reshape(logs, form.rows),
            before=arena.array(offset + places.before, form.rows * logs, int64).reshape(logs, form.rows),
            old=old[PARAMETER],
        )
        self._arrays = {key: _array(column) for key, column in self.columns.items()}
        self._logs = [_Log(self.logs, old, place) for place in range(logs)]
        self._made, self._before = self.logs.words[:, _Log.VERSION], self.logs.before.reshape(-1)
        self._old = {key: _array(column.flatten(0, 1)) for key, column in old.items()}  # entry e of log l at l R + e

    @property
    def values(self) -> Tensor:
        """The table itself, the newest version, which somebody may be writing."""
        return self.columns[PARAMETER]

    @staticmethod
    def size(form: TableForm, logs: int) -> tuple[int, int]:
        """(bytes that it takes in the arena, those of them that are used from the beginning)."""
        places = _Places(form, logs)
        return places.nbytes, places.used

    # --- whoever reads

    def read(self, rows: Tensor, version: int, key: str = PARAMETER) -> Tensor:
        """Those rows at that version, (n, …), in memory of the caller's; `rows` is int64 of shape (n,).

        Raises:
            IndexError: a row is outside.
        """
        values = self.columns[key].index_select(0, rows)
        self.put_back(values, rows, version, key)
        return values

    def put_back(self, values: Tensor, rows: Tensor, version: int, key: str = PARAMETER) -> None:
        """Of values that were read of rows, contiguous (…, width) for rows (…), make what they were at that version."""
        with self.ordering():
            if not self._is_begun_after(version):
                return
            words = self.newest[rows.numpy().ravel()]
        self._put_back(values, words, version, key)

    def _is_begun_after(self, version: int) -> bool:
        """True once a later version was begun; before, no word names one."""
        begun: int = self._logs[(version + 1) % len(self._logs)].words[_Log.VERSION]
        return begun > version

    def copy_at(self, version: int, target: Tensor, key: str = PARAMETER) -> None:
        """Copy the whole table at that version, piece by piece."""
        for first in range(0, self.rows, _PIECE):
            last = min(first + _PIECE, self.rows)
            target[first:last] = self.columns[key][first:last]
            with self.ordering():
                words = self.newest[first:last].copy()
            self._put_back(target[first:last], words, version, key)

    def _put_back(self, values: Tensor, words: Words, version: int, key: str) -> None:
        """Give rows that later versions wrote what they held at that version."""
        newest_seen = version << _BITS | _ENTRY
        (late,) = (words > newest_seen).nonzero()
        if not late.size:
            return
        entries, before = self._followed(words[late], version)
        (left,) = (before > newest_seen).nonzero()
        while left.size:
            entries[left], before[left] = self._followed(before[left], version)
            left = left[before[left] > newest_seen]
        kept = self._old[key]
        target = _array(values.detach().view(len(words), *kept.shape[1:]))
        if late.size == len(target):
            _gather(kept, entries, target)
        else:
            target[late] = kept.take(entries, 0)

    def _followed(self, words: Words, version: int) -> tuple[Words, Words]:
        """The entries that words name, and the words that the rows had before."""
        made = words >> _BITS
        logs = made % len(self._logs)
        if np.count_nonzero(self._made[logs] != made):
            raise RuntimeError(f"version {version} of a table cannot be read any more; {made} are not logged now")
        entries = logs * self.rows + (words & _ENTRY)
        return entries, self._before[entries]

    # --- whoever makes a version

    def begin(self, made: int) -> None:
        """First of all: that version is about to be made. What somebody who died wrote for it is put back."""
        log = self._logs[made % len(self._logs)]
        if log.words[log.VERSION] != made:
            log.words[log.COUNT] = 0
            log.words[log.VERSION] = made
            return
        named = self._named(log, made)
        for key, column in self._arrays.items():
            column[log.rows[named]] = log.old[key][named]
        log.words[log.COUNT] = int(named.max(initial=-1)) + 1

    def _named(self, log: _Log, made: int) -> Words:
        """The entries of a log that words name."""
        entries: Words = np.arange(log.words[log.COUNT])
        named: Words = entries[self.newest[log.rows[: entries.size]] == (made << _BITS | entries)]
        return named

    def log(self, made: int, rows: Tensor) -> None:
        """Log what those rows of the newest version hold, and name that version in their words: they may be written
        then. `rows` is int64 of shape (n,); one may come twice.

        What a version that was begun before has named stays as it is, for what those rows held is in the log.

        Raises:
            IndexError: a row is outside.
        """
        log, own = self._logs[made % len(self._logs)], _each_once(rows.numpy())
        if own.size and own[0] < 0:
            raise IndexError(f"row {own[0]} of a table of {self.rows}")
        first, words = log.words[log.COUNT], self.newest[own]
        if first and not (new := words >> _BITS < made).all():
            own, words = own[new], words[new]
        last = first + own.size
        for key, column in self._arrays.items():
            _gather(column, own, log.old[key][first:last])
        log.rows[first:last], log.before[first:last] = own, words
        log.words[log.COUNT] = last
        with self.ordering():
            self.newest[own] = np.arange(made << _BITS | first, made << _BITS | last)
        with self.ordering():
            pass  # what is stored from here on is stored after the words

    # --- a checkpoint

    def logged(self, made: int) -> dict[str, Tensor]:
        """Copies of the log of a version: its rows, and by column what they held."""
        log = self._logs[made % len(self._logs)]
        count = log.words[log.COUNT]
        return {"rows": torch.from_numpy(log.rows[:count].copy())} | {
            key: kept[:count].clone() for key, kept in log.kept.items()
        }

    def log_again(self, made: int, logged: Mapping[str, Tensor]) -> None:
        """Put the log of a version back, the versions in order, before any worker starts.

        Raises:
            ValueError: it is no log of this table.
        """
        log, rows = self._logs[made % len(self._logs)], logged["rows"]
        fits = rows.dtype == torch.int64 and rows.dim() == 1
        if not fits or len(np.unique(rows.numpy())) < len(rows) or bool(((rows < 0) | (rows >= self.rows)).any()):
            raise ValueError(f"the log of version {made} names rows that a table of {self.rows} has not")
        own = rows.numpy()
        for key, kept in log.kept.items():
            if logged[key].shape != (len(rows), *kept.shape[1:]) or logged[key].dtype != kept.dtype:
                raise ValueError(f"the log of version {made} holds {logged[key].dtype} {list(logged[key].shape)}")
            kept[: len(rows)] = logged[key]
        log.rows[: own.size], log.before[: own.size] = own, self.newest[own]
        log.words[log.VERSION], log.words[log.COUNT] = made, own.size
        self.newest[own] = made << _BITS | np.arange(own.size)


def _array(tensor: Tensor) -> NDArray[Any]:
    """The same memory, to be copied to and from; numbers that NumPy has not are integers there."""
    as_integers = _INTEGERS.get(tensor.dtype.itemsize, tensor.dtype)
    array: NDArray[Any] = tensor.view(as_integers).numpy()
    return array


def _gather(column: NDArray[Any], rows: Words, into: NDArray[Any]) -> None:
    """into[...] = column[rows], which lie inside; faster where that can be told to leave a copy between them out."""
    if column.flags.c_contiguous and into.flags.c_contiguous:
        column.take(rows, 0, into, "clip")
    else:
        into[...] = column[rows]


def _each_once(rows: Words) -> Words:
    """Those rows in order; what `np.unique` calls takes longer than its work for the few rows of an update."""
    ordered = rows.copy()
    ordered.sort()
    new = ordered[1:] != ordered[:-1]
    return ordered if np.count_nonzero(new) == new.size else ordered[np.concatenate([[True], new])]


class _Log:
    """What one version overwrote: its part of what all logs hold."""

    VERSION, COUNT = range(2)

    def __init__(self, logs: TableLogs, columns: Mapping[str, Tensor], place: int) -> None:
        self.words: memoryview[int] = logs.words[place].data
        self.rows: Words = logs.rows[place]
        self.before: Words = logs.before[place]
        self.kept = {key: column[place] for key, column in columns.items()}
        self.old = {key: _array(column) for key, column in self.kept.items()}  # the same memory


class TableLogs(NamedTuple):
    """The logs of a table as arrays: `words` int64 (L, 2), the version that each is of and how many entries it has;
    of the entries `rows` and `before`, int64 (L, R), and of the table's own values `old`, (L, R, …)."""

    words: Words
    rows: Words
    before: Words
    old: Tensor


class _Places:
    """Where each piece of a table lies, in bytes from its start; of a log there is room for every row, of which memory
    is what has been used."""

    def __init__(self, form: TableForm, logs: int) -> None:
        space = Space()
        self.columns = [space.reserve(_bytes(cell)) for cell in form.columns.values()]
        self.newest = space.reserve(8 * form.rows)
        self.words = space.reserve(16 * logs, used=0)
        self.rows = space.reserve(8 * form.rows * logs, used=0)
        self.before = space.reserve(8 * form.rows * logs, used=0)
        self.old = [space.reserve(_bytes(cell) * logs, used=0) for cell in form.columns.values()]
        self.nbytes, self.used = space.nbytes, space.used


def _bytes(cell: Cell) -> int:
    return torch.Size(cell.shape).numel() * cell.dtype.itemsize


def forms_of(entries: Sequence[Entry], state: StateForm) -> dict[int, TableForm]:
    """The form of each table that lies apart, by its position among the parameters."""
    return {i: TableForm.of(entries[i], state.by_row(i)) for i in sorted(state.tables)}
