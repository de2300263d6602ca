"""What holds other objects, and can be given back what it held: attributes, slots, items, variables of a closure.

And small arrays and tensors, with their numbers, for they may say what of the rest has been loaded.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

_MUCH = 1000  # items of a list or dict
_ITEMS = 1 << 18  # of all lists and dicts together that are kept, at most
_BYTES = 1 << 22  # of all arrays together
_LARGEST = 1 << 20  # bytes of an array that is kept
ATOMS = (int, float, complex, bool, str, bytes, type(None))  # which hold nothing


class Budget:
    """How many items and bytes may be kept."""

    def __init__(self) -> None:
        self.items, self.bytes = _ITEMS, _BYTES


class Holder(Protocol):
    """One of them, and what it held when this was made."""

    def held(self) -> dict[Any, Any]:
        """Then; by name, key or position. Nothing where that is much, for then it holds samples."""
        ...

    def put_back(self) -> None:
        """Give it back what it held."""
        ...


class _Items:
    """Of a dict, by the methods of Python's own classes, whatever a subclass makes of them."""

    def __init__(self, own: dict[Any, Any]) -> None:
        self._own, self._held = own, dict(dict.items(own))
        self._kind: type[dict[Any, Any]] = OrderedDict if isinstance(own, OrderedDict) else dict

    def held(self) -> dict[Any, Any]:
        return self._held if len(self._held) <= _MUCH else {}

    def put_back(self) -> None:
        now = dict(dict.items(self._own))
        for key in now.keys() - self._held.keys():
            self._kind.__delitem__(self._own, key)
        for key, value in self._held.items():
            if now.get(key, self) is not value:
                self._kind.__setitem__(self._own, key, value)


class _List:
    """Of a list or a deque, by the methods of Python's own classes."""

    def __init__(self, own: list[Any] | deque[Any]) -> None:
        self._own, self._held = own, list(own)

    def held(self) -> dict[Any, Any]:
        return dict(enumerate(self._held)) if len(self._held) <= _MUCH else {}

    def put_back(self) -> None:
        if isinstance(self._own, list):
            list.__setitem__(self._own, slice(None), self._held)
        else:
            deque.clear(self._own)
            deque.extend(self._own, self._held)


class _Slots:
    """Attributes that lie in no dict."""

    def __init__(self, own: Any, names: tuple[str, ...]) -> None:
        self._own, self._names, self._held = own, names, dict(_set_among(own, names))

    def held(self) -> dict[Any, Any]:
        return self._held

    def put_back(self) -> None:
        for name, _ in _set_among(self._own, self._names):
            if name not in self._held:
                object.__delattr__(self._own, name)
        for name, value in self._held.items():
            object.__setattr__(self._own, name, value)


class _Parts:
    """What cannot be changed."""

    def __init__(self, *parts: Any) -> None:
        self._held = dict(enumerate(parts))

    def held(self) -> dict[Any, Any]:
        return self._held

    def put_back(self) -> None: ...


class _Numbers:
    """Of an array or a tensor, which is written to where they are others."""

    def __init__(self, own: np.ndarray[Any, Any]) -> None:
        self._own, self._before = own, own.copy()

    def held(self) -> dict[Any, Any]:
        return {}

    def put_back(self) -> None:
        if self._own.tobytes() != self._before.tobytes():
            self._own[...] = self._before


def holders_of(one: Any, budget: Budget) -> list[Holder]:
    """What an object holds others in; of what Python itself brings along, as a logger, nothing. Nor of what cannot be
    read without an error, or is more than the budget has left, which gets smaller."""
    if isinstance(one, (*ATOMS, nn.Module, type)):
        return []
    try:
        if isinstance(one, Tensor | np.ndarray):
            return [*_numbers_of(one, budget)]
        return [*_items_of(one, budget), *_attributes_of(one)]
    except Exception:  # its class is of a kind that nobody thought of; it keeps what it has
        return []


def _items_of(one: Any, budget: Budget) -> Iterator[Holder]:
    if isinstance(one, dict | list | deque):
        budget.items -= len(one)
        if budget.items >= 0:
            yield _Items(one) if isinstance(one, dict) else _List(one)
    elif isinstance(one, tuple):
        if len(one) <= _MUCH:
            yield _Parts(*one)
    elif isinstance(one, functools.partial):
        yield _Parts(one.func, *one.args, *one.keywords.values())
    elif isinstance(one, MethodType):
        yield _Parts(one.__self__, one.__func__)
    elif isinstance(one, FunctionType):
        yield from (_Slots(cell, ("cell_contents",)) for cell in one.__closure__ or ())


def _attributes_of(one: Any) -> Iterator[Holder]:
    """Its own, whatever its class makes of attributes that are missing."""
    if type(one).__module__.partition(".")[0] in sys.stdlib_module_names and type(one) is not SimpleNamespace:
        return
    try:
        own = object.__getattribute__(one, "__dict__")
    except AttributeError:
        own = None
    if isinstance(own, dict):
        yield _Items(own)
    if names := copyreg._slotnames(type(one)):  # type: ignore[attr-defined]
        yield _Slots(one, tuple(names))


def _set_among(one: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, object.__getattribute__(one, name)
        except (AttributeError, ValueError):  # not set; an empty cell
            continue


def _numbers_of(one: Tensor | np.ndarray[Any, Any], budget: Budget) -> Iterator[Holder]:
    """Of what is small, and nothing but numbers in memory of its own."""
    if one.nbytes > _LARGEST:
        return
    if type(one) is Tensor:
        plain = one.device.type == "cpu" and one.layout is torch.strided and not one.is_nested and not one.is_quantized
        if not plain or one.is_conj() or one.is_neg() or one.is_shared() or not one.is_contiguous():  # type: ignore[no-untyped-call]
            return
        numbers = one.detach().reshape(-1).view(torch.uint8).numpy()
    elif type(one) is np.ndarray and not one.dtype.hasobject and one.flags.writeable and one.flags.owndata:
        numbers = one
    else:
        return
    budget.bytes -= numbers.nbytes
    if budget.bytes >= 0:
        yield _Numbers(numbers)
