"""Pickling for worker processes: everything that one is given, packed once for all of them.

Model, data, loss and rule may be lambdas, closures and classes of a script or notebook (cloudpickle). What is large
or must stay shared does not go through the pickle:

    the model's parameters        become views of the arena in the worker
    tensors in shared memory      stay the same memory
    other large tensors, arrays   lie once, each storage whole, in an arena of their own, which every worker maps
                                  copy-on-write
    those that are a file's       (`np.memmap`) stay on the disk, and every worker maps the file, copy-on-write

Each begins as far from a multiple of 16 bytes as it does here, and has its strides, for what a kernel rounds to may
hang on them (`hogwild.shared.placement`); so has a small one that pickle would move.

A module with a parametrization (`torch.nn.utils.parametrizations`) is of a class that torch has made for it alone, and
that refuses to be pickled; the worker makes one like it.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hogwild.errors import ArgumentError
from hogwild.shared.arena import Arena, Space, aligned
from hogwild.shared.copying import is_in_shared_memory
from hogwild.shared.mapped_files import FilePiece, MappedFiles
from hogwild.shared.placement import (
    Array,
    Bytes,
    address_of,
    array_in,
    copy_alike,
    is_plain_array,
    is_plain_tensor,
    laid,
    lies_as_new,
    phase_of,
    storage_of,
)
from hogwild.workers.process.named_by import is_importable

# What torch's pickle of a tensor can be read again of: of uint32 and float8, say, it cannot.
_PICKLED = frozenset(torch.storage._dtype_to_storage_type_map())
_LARGE = 1 << 16  # bytes; smaller ones are not worth a place of their own


class Package:
    """Objects, pickled for worker processes; itself picklable while one is being started.

    Args:
        objects: name → anything cloudpickle can pickle.
        stand_ins: id of a parameter → key by which the worker finds what replaces it.

    Raises:
        ArgumentError: one of the objects cannot be pickled; the message names which.
    """

    def __init__(self, objects: Mapping[str, Any], stand_ins: Mapping[int, tuple[str, int]]) -> None:
        self._stand_ins = stand_ins
        self._opened: list[Any] = []
        self._files = MappedFiles()
        pickler = Pickler(io.BytesIO(), stand_ins)
        try:
            blob = pickler.dumped(dict(objects))
        except Exception as error:
            raise ArgumentError(_unpicklable(objects, stand_ins, error)) from error
        self.shared = pickler.shared
        self._lay_out(blob, [one.memory for one in pickler.large])

    def _lay_out(self, blob: bytes, large: Sequence[Bytes]) -> None:
        space = Space()
        self._blob = (space.reserve(len(blob)), len(blob))
        self._large: list[tuple[int, int] | FilePiece] = []
        for memory in large:
            phase, piece = phase_of(memory), self._files.piece(memory)
            self._large.append(piece or (space.reserve(phase + len(memory)) + phase, len(memory)))
        self.arena = Arena(aligned(space.nbytes), private=True)
        self.arena.bytes(*self._blob)[:] = blob
        for memory, place in zip(large, self._large, strict=True):
            if not isinstance(place, FilePiece):
                self.arena.bytes(*place)[:] = memory.data

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_stand_ins"}

    def open(self, found: Mapping[tuple[str, int], Any]) -> dict[str, Any]:
        """The objects, in the worker; `found` maps the keys of stand-ins to what replaces them.

        They live as long as the process: the `__del__` of a copy would remove what the caller's own still needs.
        """
        opened: dict[str, Any] = _Unpickler(self, found).load()
        self._opened.append(opened)
        return opened

    def look_up(self, key: tuple[Any, ...], found: Mapping[tuple[str, int], Any]) -> Any:
        """What did not go through the pickle, by the key that stands there for it."""
        kind, number, *form = key
        if kind == "shared":
            return self.shared[number]
        if kind == "storage":
            return self._view(number, *form)
        if kind == "array":
            return array_in(self._bytes(number), *form)
        return found[kind, number]

    def _view(
        self, number: int, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """A tensor on storage `number`; tensors on one storage share it here as they did there."""
        memory = self._bytes(number)
        count = memory.nbytes // dtype.itemsize
        whole = torch.frombuffer(memory, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
        return whole.as_strided(shape, stride, offset)

    def _bytes(self, number: int) -> memoryview:
        """The memory of what is large, or moved, of that number."""
        place = self._large[number]
        return self._files.view(place) if isinstance(place, FilePiece) else self.arena.bytes(*place)

    def close(self) -> None:
        """Give back the file descriptors."""
        self.arena.close()
        self._files.close()


class Beside(NamedTuple):
    """What goes beside the pickle: bytes, by a key that is theirs as long as who has them lives."""

    key: Hashable
    memory: Bytes
    owner: Tensor | Array


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """What is large, or stays shared, goes beside the pickle; parameters are stood in for."""

    def __init__(self, file: io.BytesIO, stand_ins: Mapping[int, tuple[str, int]]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file = file
        self._stand_ins = stand_ins
        self._numbers: dict[Hashable, int] = {}
        self._in_modules: dict[int, tuple[ModuleType, str]] | None = None
        self.shared: list[Tensor] = []
        self.large: list[Beside] = []

    def dumped(self, value: Any) -> bytes:
        """The whole pickle of one value."""
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """By which key the worker finds what is not in the pickle."""
        if id(value) in self._stand_ins:
            return self._stand_ins[id(value)]
        if is_in_shared_memory(value) and value.device.type == "cpu":
            return "shared", self._number(id(value), value, self.shared)
        if is_plain_tensor(value):
            large = value.untyped_storage().nbytes() >= _LARGE
            if large or value.dtype not in _PICKLED or not lies_as_new(value):
                form = value.dtype, value.storage_offset(), tuple(value.shape), value.stride()
                storage = storage_of(value)
                one = Beside((address_of(storage), len(storage)), storage, value)
                return "storage", self._number(one.key, one, self.large), *form
        if is_plain_array(value) and value.nbytes >= _LARGE:
            memory, place, strides = laid(value)
            one = Beside((address_of(value), value.shape, value.strides), memory, value)
            return "array", self._number(one.key, one, self.large), value.dtype, value.shape, place, strides
        return None

    def reducer_override(self, value: Any) -> Any:
        """How what pickle has no way for is made again."""
        if isinstance(value, nn.Module) and vars(type(value)).get("__getstate__", _nobody).__module__ == _PARAMETRIZE:
            own: Any = type(value).__bases__[0]
            names = tuple(value.parametrizations)  # type: ignore[arg-type]
            return _parametrized, (own, names), own.__getstate__(value)
        if isinstance(value, _Cached) and not is_importable(value):  # a script's, which pickle would look for there
            return _cached, (value.__wrapped__, value.cache_parameters())
        if isinstance(value, ModuleType) and (within := _holder_of(value)) is not None:
            return getattr, within
        if type(value).__name__ == "pybind11_type" and (name := _name_in_its_module(value)) is not None:
            return getattr, (sys.modules[value.__module__], name)
        if type(value) is object:
            self._in_modules = _objects_of_modules() if self._in_modules is None else self._in_modules
            if id(value) in self._in_modules:
                return getattr, self._in_modules[id(value)]
        if type(value) is np.memmap and not value.dtype.hasobject:
            return _as_memmap, (np.asarray(value),)
        if is_plain_array(value) and not lies_as_new(value):
            memory, place, strides = laid(value)
            form = value.dtype, value.shape, place, strides
            return _array_again, (memory.tobytes(), phase_of(memory), value.flags.writeable, *form)
        return super().reducer_override(value)

    def _number(self, key: Hashable, value: Any, held: list[Any]) -> int:
        """The place of a value in a list that holds each one once, and keeps it alive while its key is in use."""
        if key not in self._numbers:
            self._numbers[key] = len(held)
            held.append(value)
        return self._numbers[key]


_PARAMETRIZE = parametrize.__name__
_Cached = type(functools.lru_cache(lambda: None))


def _cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    """That function, with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def _holder_of(module: ModuleType) -> tuple[ModuleType, str] | None:
    """(module, name) by which one that cannot be imported is found, as `torch._C._functions`; None: by none."""
    parent, _, name = module.__name__.rpartition(".")
    holder = sys.modules.get(parent)
    found = module.__name__ not in sys.modules and getattr(holder, name, None) is module
    return (holder, name) if found and holder is not None else None


def _name_in_its_module(one: type) -> str | None:
    """By which name a module of torch has a class that calls itself otherwise there, as `SDPBackend`; None: by none."""
    names = vars(sys.modules.get(one.__module__, object))
    return next((name for name, value in names.items() if value is one), None)


def _objects_of_modules() -> dict[int, tuple[ModuleType, str]]:
    """Where a worker, too, finds each `object()` that a module has, which is nothing but itself: (module, name)."""
    modules = [one for name, one in [*sys.modules.items()] if name != "__main__" and getattr(one, "__spec__", None)]
    return {
        id(value): (module, name)
        for module in modules
        for name, value in [*getattr(module, "__dict__", {}).items()]
        if type(value) is object
    }


def _nobody() -> None: ...


def _parametrized(own: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """An empty module, of a class made of its `own` as torch makes it where tensors of these names are parametrized."""
    module = own.__new__(own)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


class _Unpickler(pickle.Unpickler):
    """A method of its own, because some Pythons (3.13.0) refuse `persistent_load` as an attribute."""

    def __init__(self, package: Package, found: Mapping[tuple[str, int], Any]) -> None:
        super().__init__(io.BytesIO(package.arena.bytes(*package._blob)))
        self._package, self._found = package, found

    def persistent_load(self, key: tuple[Any, ...]) -> Any:
        return self._package.look_up(key, self._found)


def _array_again(memory: bytes, phase: int, writeable: bool, *form: Any) -> Array:
    array = array_in(copy_alike(memory, phase), *form)
    array.flags.writeable = writeable
    return array


def _as_memmap(array: Array) -> Array:
    """Of that class; it does not know its file."""
    return array.view(np.memmap)


_ADVICE = "kind='threads' sends nothing"
_OF_DATA = f"{_ADVICE}, and processes can open or make for themselves what __getstate__ leaves out"


def _unpicklable(objects: Mapping[str, Any], stand_ins: Mapping[int, tuple[str, int]], error: Exception) -> str:
    """One line that names the first object that cannot be pickled."""
    for name, value in objects.items():
        try:
            Pickler(io.BytesIO(), stand_ins).dumped(value)
        except Exception as reason:
            said, advice = ("data", _OF_DATA) if name == "source" else (name, _ADVICE)
            return f"{said} cannot be sent to worker processes: {_first_line(reason)}; {advice}"
    return f"the run cannot be sent to worker processes: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
