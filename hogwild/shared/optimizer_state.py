"""Where an optimizer's state lies in shared memory, and in what form; no optimizer is known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.shared.arena import Arena, Space
from hogwild.shared.layout import Block, Layout, Range

PARAMETER = "parameter"
"""The key of the parameter itself, where it is part of the state and the slots hold what is predicted of it."""
AVERAGE = "ema"
"""The key under which the moving average of a parameter lies beside what the optimizer keeps."""


@dataclass(frozen=True)
class Cell:
    """One entry of an optimizer's state: its form, and whether it is laid out as the parameter is (`like`)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    like: bool = False
    number: type[int] | type[float] | None = None


@dataclass(frozen=True)
class StateForm:
    """What an optimizer's state looks like in memory: `cells[i]` is the state of parameter i by key.

    `layout` is that of the parameters; `flat` says that each range of it is stepped as one tensor; of `tables` what has
    rows lies with them (`hogwild.shared.tables`), and here is the rest.
    """

    layout: Layout
    flat: bool
    cells: tuple[Mapping[str, Cell], ...]
    tables: frozenset[int] = frozenset()

    def by_row(self, i: int) -> dict[str, Cell]:
        """What is kept of each row of parameter i, and lies with it."""
        rows = self.layout.entries[i].shape[:1]
        return {key: cell for key, cell in self.cells[i].items() if i in self.tables and cell.shape[:1] == rows}

    @property
    def holds_parameters(self) -> bool:
        """True where the parameters are part of the state, and the slots hold what is predicted of them."""
        return any(PARAMETER in cells for cells in self.cells)

    @property
    def averaged(self) -> bool:
        """True where the moving average of each parameter is kept too."""
        return any(AVERAGE in cells for cells in self.cells)

    def with_average(self) -> StateForm:
        """The same with room for the moving average of each parameter."""
        entries = zip(self.layout.entries, self.cells, strict=True)
        cells = [{**own, AVERAGE: Cell(entry.dtype, entry.shape, entry.stride, like=True)} for entry, own in entries]
        return StateForm(self.layout, self.flat, tuple(cells))


class _Places:
    """Where each piece of a copy lies, in bytes from its start."""

    def __init__(self, form: StateForm) -> None:
        space = Space()
        self.started = space.reserve(8 * len(form.layout.entries))
        self.ragged = space.reserve(8 * len(form.layout.ranges))
        keys = sorted({key for cells in form.cells for key, cell in cells.items() if cell.like})
        self.laid_out = {key: space.reserve(form.layout.nbytes) for key in keys}
        self.single = {
            (i, key): space.reserve(torch.Size(cell.shape).numel() * cell.dtype.itemsize)
            for i, cells in enumerate(form.cells)
            for key, cell in cells.items()
            if not cell.like and key not in form.by_row(i)
        }
        self.nbytes = space.nbytes


class OptimizerState:
    """One copy of the optimizer's state in shared memory.

    `started[i]` is 1 once parameter i has been stepped; `ragged[r]` is 1 once range r was stepped in part, after
    which its scalars differ and it is never again stepped whole. Until then the scalars of a range's first member
    hold for all of them.
    """

    def __init__(self, form: StateForm, arena: Arena, offset: int) -> None:
        self.form = form
        layout = form.layout
        places = _Places(form)
        self.started = arena.words(offset + places.started, len(layout.entries))
        self.ragged = arena.words(offset + places.ragged, len(layout.ranges))
        self.tensors: list[dict[str, Tensor]] = [{} for _ in layout.entries]
        self.flats: list[dict[str, Tensor]] = [{} for _ in layout.ranges]
        for key, place in places.laid_out.items():
            block = Block.shared(arena, offset + place)
            views = layout.views(block)
            for i, cells in enumerate(form.cells):
                if key in cells and cells[key].like:
                    self.tensors[i][key] = views[i]
            for flats, flat in zip(self.flats, layout.flats(block), strict=True):
                flats[key] = flat
        for (i, key), place in places.single.items():
            cell = form.cells[i][key]
            flat = arena.tensor(offset + place, torch.Size(cell.shape).numel(), cell.dtype)
            self.tensors[i][key] = flat.as_strided(cell.shape, cell.stride)
        self._share_scalars(layout.ranges)
        self.bytes = arena.bytes(offset, places.nbytes)

    @staticmethod
    def size(form: StateForm) -> int:
        """Bytes of one copy."""
        return _Places(form).nbytes

    def _share_scalars(self, ranges: Sequence[Range]) -> None:
        """A flat step reads and writes the scalars of the range's first member."""
        for flats, span in zip(self.flats, ranges, strict=True):
            first = span.members[0]
            wanted = self.form.cells[first]
            for key in list(flats):
                if key not in wanted:
                    del flats[key]
            apart = self.form.by_row(first)
            single = [key for key, cell in wanted.items() if not cell.like and key not in apart]
            flats.update({key: self.tensors[first][key] for key in single})

    def prepare(self, initial: Sequence[Mapping[str, Any]]) -> None:
        """Before any worker starts: `initial[i]` is the state that parameter i had before its first step."""
        for i, state in enumerate(initial):
            for key, value in state.items():
                if key in self.tensors[i]:
                    target = self.tensors[i][key]
                    target.copy_(value) if isinstance(value, Tensor) else target.fill_(value)
            self.started[i] = int(bool(state))
        for number, span in enumerate(self.form.layout.ranges):
            self.ragged[number] = int(len({self._scalars(i) for i in span.members}) > 1)

    def _scalars(self, i: int) -> tuple[float, ...]:
        """What must be equal in all members of a range that is stepped whole."""
        own = [
            self.tensors[i][key].item()
            for key, cell in self.form.cells[i].items()
            if key in self.tensors[i] and torch.Size(cell.shape).numel() == 1 and not cell.like
        ]
        return (self.started[i], *own)

    def parameters(self) -> list[Tensor]:
        """The parameters themselves, where they are part of the state."""
        return [own[PARAMETER] for own in self.tensors]

    def average(self) -> list[Tensor]:
        """The moving average of each parameter; none where none is kept."""
        return [own[AVERAGE] for own in self.tensors] if self.form.averaged else []

    def begin(self, parameters: Iterable[int]) -> None:
        """Those parameters have been stepped."""
        for i in parameters:
            self.started[i] = 1

    def copy_from(self, other: OptimizerState) -> None:
        """Become equal to another copy."""
        self.bytes[:] = other.bytes

    def make_ragged(self, number: int) -> None:
        """Give every member of a range its own scalars, before part of the range is stepped."""
        first, *others = self.form.layout.ranges[number].members
        if self.ragged[number] or not self.form.flat or not self.form.cells[first]:
            return
        for key, cell in self.form.cells[first].items():
            if not cell.like:
                for i in others:
                    self.tensors[i][key].copy_(self.tensors[first][key])
        self.ragged[number] = 1
