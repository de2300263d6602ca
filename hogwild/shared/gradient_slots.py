"""Gradient slots: gradients in shared memory, where they wait to be applied, with what else a forward pass left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.shared.arena import ALIGNMENT, Arena, Space, aligned, as_tensor
from hogwild.shared.layout import Block, Entry, Layout

_WORDS = 6
_NONE, _DENSE, _SPARSE, _COALESCED, _TABLE = range(5)


class GradientSlot:
    """One gradient in shared memory, and what belongs to it.

    `tensors` holds one view per parameter and `flats` one tensor per range. `buffers` are the buffers after the forward
    pass. `words` are indexed by the constants below. `bytes` is the whole slot.

    Args:
        parameters, buffers: their layouts, without the tables that lie in no slot.
        entries: of all parameters.
        sparse: the positions of the parameters whose sparse gradients are kept as rows → how many rows one may name;
            of a gradient that names more, those that come twice are added up first.
        arena, offset: where it lies.
    """

    # Places in `words`.
    STAMP = 0  # the number of the update, plus one; stored last, so it says that the gradient is there
    STATUS = 1  # one of the four below
    WORKER = 2  # who computed it
    VERSION = 3  # the version it was computed on
    WHOLE = 4  # 1 where every parameter has a dense gradient
    CHECKED = 5  # the number of the update, plus one, once a second computation gave the same bits

    # Values of STATUS.
    LEFT_OUT = 0  # the update is left out on purpose
    NOT_FINITE = 1  # loss or gradient is not finite
    USABLE = 2  # it can be applied
    TRAINED = 3  # the slot holds rows that a kernel has trained, in place of a gradient

    def __init__(
        self,
        parameters: Layout,
        buffers: Layout,
        entries: Sequence[Entry],
        sparse: Mapping[int, int],
        arena: Arena,
        offset: int,
    ) -> None:
        places = _Places(parameters, buffers, entries, sparse)
        block = Block.shared(arena, offset)
        self.tensors = parameters.views(block)
        self.flats = parameters.flats(block)
        self.buffers = buffers.views(Block.shared(arena, offset + places.buffers))
        self.words = arena.words(offset + places.words, _WORDS)
        self.bytes = arena.bytes(offset, places.nbytes)
        self._words_at = places.words
        self._kinds = arena.words(offset + places.kinds, len(parameters.entries))
        self._numbers = arena.bytes(offset + places.numbers, 16).cast("d")
        self._rows = {i: _Rows(entries[i], arena, offset + place, most) for (i, most), place in places.rows.items()}
        self._tables = {i for i, entry in enumerate(parameters.entries) if entry.shape != entries[i].shape}

    @staticmethod
    def size(
        parameters: Layout, buffers: Layout, entries: Sequence[Entry], sparse: Mapping[int, int]
    ) -> tuple[int, int]:
        """(bytes of one gradient slot, those of them that are used before long)."""
        places = _Places(parameters, buffers, entries, sparse)
        return places.nbytes, places.used

    @property
    def loss(self) -> float:
        """The loss of the batch."""
        return self._numbers[0]

    @loss.setter
    def loss(self, value: float) -> None:
        self._numbers[0] = value

    @property
    def factor(self) -> float:
        """What its worker found the factor on learning rates to be, where it is computed a second time."""
        return self._numbers[1]

    @factor.setter
    def factor(self, value: float) -> None:
        self._numbers[1] = value

    @property
    def holds_all(self) -> bool:
        """True where a dense gradient of each parameter has its place in `tensors`."""
        return not self._tables

    def takes_rows(self, i: int, gradient: Tensor) -> bool:
        """True where a gradient of parameter i is kept by rows: a sparse one, or a dense one of a table."""
        if gradient.is_sparse:
            return i in self._rows and gradient.sparse_dim() == 1
        return i in self._tables

    def hold(self, gradients: Sequence[Tensor | None], *, whole: bool = False) -> None:
        """Take in a gradient for each parameter, or None; not copied is what is in `tensors` already (`whole`: all)."""
        self.words[self.WHOLE] = whole
        if whole:
            return
        whole = True
        for i, gradient in enumerate(gradients):
            if gradient is None:
                self._kinds[i] = _NONE
            elif gradient.is_sparse:
                self._kinds[i] = _COALESCED if self._rows[i].hold(gradient) else _SPARSE
            elif i in self._tables:
                self._kinds[i] = _TABLE
                self._rows[i].table().copy_(gradient)
            else:
                self._kinds[i] = _DENSE
                if gradient is not self.tensors[i]:
                    self.tensors[i].copy_(gradient)
                continue
            whole = False
        self.words[self.WHOLE] = whole

    def room(self, rows: Mapping[int, NDArray[Any]]) -> dict[int, NDArray[Any]]:
        """Name rows of tables, int64 (n,), and no other parameter: the place of the values of each, (n, …)."""
        self.words[self.WHOLE] = 0
        for i in range(len(self._kinds)):
            self._kinds[i] = _SPARSE if i in rows else _NONE
        return {i: self._rows[i].name(own) for i, own in rows.items()}

    def named(self) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
        """The rows of each table that are named, and their values, as `room` gave them."""
        return {i: place.named() for i, place in self._rows.items() if self._kinds[i] == _SPARSE}

    def load(self, content: Tensor) -> bool:
        """Take in the bytes of another machine's slot for the same plan, uint8; it is still to be said that they are
        there. False: no slot without sparse gradients looks like that."""
        words = content[self._words_at : self._words_at + 8 * _WORDS].view(torch.int64)
        words[self.STAMP] = words[self.CHECKED] = 0
        as_tensor(self.bytes).copy_(content)
        sound = self.words[self.STATUS] in (self.LEFT_OUT, self.NOT_FINITE, self.USABLE)
        return sound and self.words[self.WHOLE] in (0, 1) and all(kind in (_NONE, _DENSE) for kind in self._kinds)

    def gradients(self) -> list[Tensor | None]:
        """One for each parameter: a view of the slot, rows in the slot, or None."""
        if self.words[self.WHOLE]:
            return list(self.tensors)
        return [self._gradient(i, kind) for i, kind in enumerate(self._kinds.tolist())]

    def _gradient(self, i: int, kind: int) -> Tensor | None:
        if kind == _NONE:
            return None
        if kind == _TABLE:
            return self._rows[i].table()
        return self.tensors[i] if kind == _DENSE else self._rows[i].gradient(coalesced=kind == _COALESCED)


class _Rows:
    """The place of a sparse gradient of one parameter."""

    def __init__(self, entry: Entry, arena: Arena, offset: int, most: int) -> None:
        self._entry = entry
        self._arena = arena
        self._most = most
        self._all: tuple[NDArray[Any], NDArray[Any]] | None = None  # asked for once an update
        self._count = arena.words(offset, 1)
        self._numbers = offset + ALIGNMENT
        self._values = self._numbers + aligned(8 * most)

    @staticmethod
    def size(entry: Entry, most: int) -> int:
        """Bytes of the place of at most so many rows."""
        return ALIGNMENT + aligned(8 * most) + most * math.prod(entry.shape[1:]) * entry.dtype.itemsize

    def hold(self, gradient: Tensor) -> bool:
        """Copy a gradient that fits; True where its rows are different ones, in order."""
        count = self._count[0] = gradient._nnz()
        numbers, values = self._views(count)
        numbers.copy_(gradient._indices())
        values.copy_(gradient._values())
        return gradient.is_coalesced()

    def name(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Note the numbers of rows; the place of their values."""
        self._count[0] = len(rows)
        numbers, values = self.named()
        numbers[:] = rows
        return values

    def named(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The numbers of rows and the values."""
        if self._all is None:
            numbers, values = self._views(self._most)
            self._all = numbers[0].numpy(), values.numpy()
        count = self._count[0]
        return self._all[0][:count], self._all[1][:count]

    def gradient(self, *, coalesced: bool) -> Tensor:
        """That gradient, on this memory."""
        numbers, values = self._views(self._count[0])
        return torch.sparse_coo_tensor(
            numbers, values, self._entry.shape, is_coalesced=coalesced, check_invariants=False
        )

    def table(self) -> Tensor:
        """The place of the values of all rows."""
        return self._views(self._entry.shape[0])[1]

    def _views(self, count: int) -> tuple[Tensor, Tensor]:
        rest = self._entry.shape[1:]
        numbers = self._arena.tensor(self._numbers, count, torch.int64).view(1, count)
        values = self._arena.tensor(self._values, count * math.prod(rest), self._entry.dtype)
        return numbers, values.view(count, *rest)


class _Places:
    """Where each piece of a slot lies, in bytes from its start."""

    def __init__(
        self, parameters: Layout, buffers: Layout, entries: Sequence[Entry], sparse: Mapping[int, int]
    ) -> None:
        space = Space()
        space.reserve(parameters.nbytes)
        self.buffers = space.reserve(buffers.nbytes)
        self.words = space.reserve(8 * _WORDS)
        self.kinds = space.reserve(8 * len(parameters.entries))
        self.numbers = space.reserve(16)
        self.rows = {(i, most): space.reserve(_Rows.size(entries[i], most), used=0) for i, most in sparse.items()}
        self.nbytes, self.used = space.nbytes, space.used
