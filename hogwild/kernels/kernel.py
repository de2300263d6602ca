"""A kernel: two functions that train tables, and which rows of which table they touch.

    draw(ticket, seed)            →  arrays by name, index arrays among them
    step(tables, drawn, rate)     →  loss, having written those rows

Invariant: a step reads and writes only the rows that its draw names, so that it may as well run on copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from hogwild.errors import ArgumentError, a_type

_DTYPES = (torch.float32, torch.float64)
Array = np.ndarray[Any, Any]
Drawn = Mapping[str, Any]


@cache
def compiled(module: str) -> ModuleType:
    """A module of this folder whose functions numba compiles.

    Raises:
        ArgumentError: numba is not installed.
    """
    try:
        return import_module(f"hogwild.kernels.{module}")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise ArgumentError("kernels need numba, which is not installed; pip install 'hogwild[embeddings]'") from error


def unchanging(done: float) -> float:  # noqa: ARG001
    """The schedule of a learning rate that stays what it is."""
    return 1.0


@dataclass(frozen=True)
class Kernel:
    """Trains the tables of a model by a function of yours, ticket by ticket; for `hogwild.train_kernel`.

    Compile what takes the time with numba, `@numba.njit(nogil=True, cache=True)`, and threads train at full speed.
    Both functions may be called by several threads at once, and each in its own process.

    Attributes:
        draw: (ticket, seed) → what that ticket trains on: a mapping of names to arrays and numbers, chosen by its
            arguments alone. Tickets are numbered from 0 over the whole run; `seed` is another one for each ticket, an
            int below 2^63 that follows from the run's. Nothing random may be drawn later, for the rows must be known.
        step: (tables, drawn, rate) → the mean loss, a float; writes the tables in place. `tables`: name → float array
            of shape (rows, width). `drawn`: what `draw` returned, its index arrays renumbered where `tables` holds only
            the rows that are touched. `rate`: lr × schedule(share of the run that is done).
        rows: name of an index array in `drawn` → name of the parameter whose rows it counts, or several names. The
            arrays hold integers and have any shape; the parameters have two dimensions, float32 or float64.
        tickets: how many make an epoch.
        samples: in a ticket, about; what speed is told in.
        lr: the learning rate, where the run has none of its own (`--lr`).
        schedule: share of the run that is done, from 0 to below 1 → factor on lr.

    Raises:
        ArgumentError: one of them cannot work.
    """

    draw: Callable[[int, int], Drawn]
    step: Callable[[Mapping[str, Array], Drawn, float], float]
    rows: Mapping[str, str | Sequence[str]]
    tickets: int
    samples: int = 1
    lr: float = 1.0
    schedule: Callable[[float], float] = unchanging
    tables: Mapping[str, tuple[str, ...]] = field(init=False)
    """Name of a table → the index arrays that count its rows."""

    def __post_init__(self) -> None:
        for name in ("draw", "step", "schedule"):
            if not callable(getattr(self, name)):
                raise ArgumentError(f"{name} {getattr(self, name)!r} is no function; a kernel is made of functions")
        self._check_rows()
        for name in ("tickets", "samples"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} {getattr(self, name)} is below 1; 1 is the least that works")
        tables: dict[str, tuple[str, ...]] = {}
        for array in self.rows:
            for table in self.of(array):
                tables[table] = (*tables.get(table, ()), array)
        object.__setattr__(self, "tables", tables)
        for array in self.rows:
            first, *others = self.of(array)
            for other in others:
                if tables[first] != tables[other]:
                    raise ArgumentError(
                        f"rows: {array!r} counts rows of {first} and of {other}, which must then have all index arrays "
                        f"in common; {first} has {', '.join(tables[first])} and {other} {', '.join(tables[other])}"
                    )

    def _check_rows(self) -> None:
        """Refuse what does not say whose rows an index array counts."""
        example = "{'centers': 'input'} says whose rows 'centers' counts"
        if not isinstance(self.rows, Mapping):
            raise ArgumentError(f"rows is {a_type(self.rows)}, {self.rows!r:.60}, and no mapping; {example}")
        if not self.rows:
            raise ArgumentError(f"rows names no index array; {example}")
        for array, named in self.rows.items():
            several = isinstance(named, list | tuple) and named and all(isinstance(name, str) for name in named)
            if not (isinstance(array, str) and (isinstance(named, str) or several)):
                raise ArgumentError(
                    f"rows has {named!r:.60} for {array!r:.60}, where names of parameters go; {example}"
                )

    def of(self, array: str) -> tuple[str, ...]:
        """The names of the tables whose rows an index array counts."""
        named = self.rows[array]
        return (named,) if isinstance(named, str) else tuple(named)

    def __len__(self) -> int:
        return self.tickets

    def __deepcopy__(self, memo: Any) -> Kernel:
        """Itself: its functions keep nothing."""
        return self

    def batch(self, update: int, generator: torch.Generator) -> Drawn:
        """What the ticket of that number trains on, as `hogwild.Source` has it; the generator is seeded for it."""
        drawn: Drawn = self.draw(update, generator.initial_seed())
        return drawn

    def parameters_in(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The tables, by name.

        Raises:
            ArgumentError: the model has no parameter of that name, it is not trained, or it is no table; or two names
                are those of one parameter.
        """
        known = dict(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        for name in self.tables:
            if name not in known:
                has = ", ".join(known)
                raise ArgumentError(f"rows names {name!r}, and the model has no such parameter; it has {has}")
            if known[name].dim() != 2:
                raise ArgumentError(f"{name} has the shape {list(known[name].shape)}; a table has (rows, width)")
            if known[name].dtype not in _DTYPES:
                form = str(known[name].dtype).removeprefix("torch.")
                raise ArgumentError(f"{name} is a table of {form}; a kernel trains float32 and float64")
            if not len(known[name]):
                raise ArgumentError(f"{name} has no rows, so there is nothing to train")
            if not known[name].requires_grad:
                raise ArgumentError(f"{name} is not trained (requires_grad=False), and rows names it as a table")
            if (other := first.setdefault(id(known[name]), name)) != name:
                raise ArgumentError(f"{other} and {name} are one parameter; rows names it once, for all index arrays")
        return {name: known[name] for name in self.tables}

    def check(self, drawn: Drawn, rows: Mapping[str, int]) -> None:
        """Refuse what a step must not be given; `rows` is how many each table has.

        Raises:
            ArgumentError: an index array is missing, holds no integers, or counts a row that is outside.
        """
        self.check_forms(drawn)
        for array in self.rows:
            flat = np.ascontiguousarray(drawn[array]).reshape(-1)
            table = min(self.of(array), key=rows.__getitem__)
            if (place := compiled("numbers").outside(flat, rows[table])) >= 0:
                raise ArgumentError(
                    f"{array} counts row {flat[place]} of {table}, which has {rows[table]}: 0 to {rows[table] - 1}"
                )

    def check_forms(self, drawn: Drawn) -> None:
        """Refuse what has no index arrays.

        Raises:
            ArgumentError: an index array is missing, or holds no integers, or those of another processor.
        """
        if not isinstance(drawn, Mapping):
            raise ArgumentError(f"draw returned {a_type(drawn)}; it must return a dict of arrays by name")
        for array in self.rows:
            if array not in drawn:
                raise ArgumentError(f"draw returned {', '.join(map(str, drawn))}, and rows names {array!r}")
            indices = drawn[array]
            if not isinstance(indices, np.ndarray) or indices.dtype.kind not in "iu":
                form = f"{indices.dtype} array" if isinstance(indices, np.ndarray) else type(indices).__name__
                raise ArgumentError(f"{array} of draw is a {form}; an index array holds integers")
            if not indices.dtype.isnative:
                raise ArgumentError(
                    f"{array} of draw is a {indices.dtype.str} array, whose bytes have the order of another processor; "
                    f"array.astype({indices.dtype.name!r}) has this one's"
                )
