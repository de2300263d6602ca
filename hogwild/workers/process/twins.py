"""Twins: objects as a worker process would get them, made in this one, to see beforehand what would become of them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from hogwild.shared.mapped_files import MappedFiles
from hogwild.shared.placement import Bytes, array_in, copy_alike, phase_of
from hogwild.workers.process.package import Pickler

_LARGEST_TWIN = 1 << 26  # bytes of a pickle


def twins_of(objects: Mapping[str, Any], source: Any, found: Mapping[int, Any]) -> dict[str, Any] | None:
    """The objects as a worker process would get them, made in this one; None where they cannot be pickled.

    What is large in `source`, one of them, stays where it is; all else is copied, and a file that is mapped is mapped
    again. `found`: id of a parameter → what replaces it. Given up are a pickle of more than 64 MiB, and what has a
    `__del__` and holds parameters.
    """
    keys = {own: ("own", own) for own in found}
    try:
        of_source = _TwinPickler(_Limited(), keys)
        of_source.dumped(source)
        kept = {one.key for one in of_source.large}
        pickler = _TwinPickler(_Limited(), keys)
        blob = pickler.dumped(dict(objects))
        data = {id(one) for one in of_source.left}
        if any(_holds_some(one, keys) for one in pickler.left if id(one) not in data):
            return None
        twins: dict[str, Any] = _Here(blob, pickler, kept, found).load()
    except Exception:
        return None
    return twins


def _holds_some(one: Any, keys: Mapping[int, tuple[str, int]]) -> bool:
    """True for an object that is not copied, and so holds the caller's parameters where a twin would hold its own."""
    pickler = _Watching(_Limited(), keys)
    if not isinstance(one, type):
        with suppress(Exception):  # what it holds beside need not be sent
            pickler.dumped(one)
    return pickler.saw_some


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _LARGEST_TWIN:
            raise MemoryError("too much to copy")
        return super().write(data)


class _Watching(Pickler):
    saw_some = False

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        self.saw_some = self.saw_some or id(value) in self._stand_ins
        return super().persistent_id(value)


class _TwinPickler(Pickler):
    """Leaves classes where they are: read in the same process, a class of a script would be written over. Likewise what
    has a `__del__`, for the end of a copy would remove what belongs to it, and an `object()`, which is nothing but
    itself, and which a method of such a class would not find in a copy."""

    def __init__(self, file: io.BytesIO, stand_ins: Mapping[int, tuple[str, int]]) -> None:
        super().__init__(file, stand_ins)
        self.left: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if (
            isinstance(value, type)
            or type(value) is object
            or (_has_finalizer(type(value)) and not isinstance(value, nn.Module))
        ):
            return "left", self._number(id(value), value, self.left)
        return super().persistent_id(value)


def _has_finalizer(own: type) -> bool:
    """True where a class written in Python says what is to happen at the end of an object of it."""
    return isinstance(getattr(own, "__del__", None), FunctionType)


def _another(memory: Bytes, files: MappedFiles, *, stays: bool) -> Bytes:
    """A copy of it, unless it `stays`; of a file that is mapped another map, to which this process writes alone."""
    piece = files.piece(memory)
    if piece is not None:
        return np.asarray(files.view(piece))
    return memory if stays else copy_alike(memory, phase_of(memory))


class _Here(pickle.Unpickler):
    """Reads a pickle in the process that wrote it."""

    def __init__(self, blob: bytes, pickler: _TwinPickler, kept: set[Hashable], found: Mapping[int, Any]) -> None:
        super().__init__(io.BytesIO(blob))
        self._shared, self._left, self._found = pickler.shared, pickler.left, found
        files = MappedFiles()
        self._large = [_another(one.memory, files, stays=one.key in kept) for one in pickler.large]

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        kind, number, *form = key
        if kind in ("shared", "left"):
            return (self._shared if kind == "shared" else self._left)[number]
        if kind == "storage":
            dtype, offset, shape, stride = form
            storage = torch.from_numpy(self._large[number]).untyped_storage()
            return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
        return array_in(self._large[number], *form) if kind == "array" else self._found[number]
