"""Everything a worker process is given, pickled once for all of them.

Model, data, loss and rule may be lambdas, closures and classes of a script or notebook (cloudpickle). What is large
or must stay shared does not go through the pickle:

    the model's parameters        become views of the arena in the worker
    tensors in shared memory      stay the same memory
    other large tensors, arrays   lie once in an arena of their own, mapped copy-on-write by every worker
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, cast

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from hogwild.errors import ArgumentError
from hogwild.memory import Arena, Space, aligned

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
        pickler = _Pickler(io.BytesIO(), stand_ins)
        try:
            blob = pickler.dumped(dict(objects))
        except Exception as error:
            raise ArgumentError(_unpicklable(objects, stand_ins, error)) from error
        self.shared = pickler.shared
        self._lay_out(blob, pickler.large)

    def _lay_out(self, blob: bytes, large: list[Tensor | np.ndarray[Any, Any]]) -> None:
        space = Space()
        self._blob = (space.reserve(len(blob)), len(blob))
        self._large: list[tuple[int, Any, tuple[int, ...]]] = []
        for value in large:
            self._large.append((space.reserve(value.nbytes), value.dtype, tuple(value.shape)))
        self.arena = Arena(aligned(space.nbytes), private=True)
        self.arena.bytes(*self._blob)[:] = blob
        for value, (offset, dtype, _) in zip(large, self._large, strict=True):
            if isinstance(value, Tensor):
                self.arena.tensor(offset, value.numel(), dtype).copy_(value.reshape(-1))
            else:
                self.arena.array(offset, value.size, dtype)[:] = value.reshape(-1)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_stand_ins"}

    def open(self, found: Mapping[tuple[str, int], Any]) -> dict[str, Any]:
        """The objects, in the worker; `found` maps the keys of stand-ins to what replaces them."""
        unpickler = pickle.Unpickler(io.BytesIO(self.arena.bytes(*self._blob)))

        def load(key: tuple[str, int]) -> Any:
            kind, number = key
            if kind == "shared":
                return self.shared[number]
            if kind != "large":
                return found[key]
            offset, dtype, shape = self._large[number]
            if isinstance(dtype, torch.dtype):
                return self.arena.tensor(offset, torch.Size(shape).numel(), dtype).view(shape)
            return self.arena.array(offset, int(np.prod(shape)), dtype).reshape(shape)

        unpickler.persistent_load = load  # type: ignore[method-assign]
        return cast("dict[str, Any]", unpickler.load())

    def close(self) -> None:
        """Give back the file descriptor."""
        self.arena.close()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, stand_ins: Mapping[int, tuple[str, int]]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file = file
        self._stand_ins = stand_ins
        self._numbers: dict[int, tuple[str, int]] = {}
        self.shared: list[Tensor] = []
        self.large: list[Tensor | np.ndarray[Any, Any]] = []

    def dumped(self, value: Any) -> bytes:
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        if id(value) in self._stand_ins:
            return self._stand_ins[id(value)]
        if id(value) not in self._numbers:
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.is_shared():  # type: ignore[no-untyped-call]
                self._numbers[id(value)] = ("shared", len(self.shared))
                self.shared.append(value)
            elif _is_large(value):
                self._numbers[id(value)] = ("large", len(self.large))
                self.large.append(value)
        return self._numbers.get(id(value))


def _is_large(value: Any) -> bool:
    if type(value) is Tensor:
        plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        return plain and value.nbytes >= _LARGE
    return type(value) is np.ndarray and not value.dtype.hasobject and value.nbytes >= _LARGE


def _unpicklable(objects: Mapping[str, Any], stand_ins: Mapping[int, tuple[str, int]], error: Exception) -> str:
    """One line that names the first object that cannot be pickled."""
    for name, value in objects.items():
        try:
            _Pickler(io.BytesIO(), stand_ins).dumped(value)
        except Exception as reason:
            return f"{name} cannot be sent to worker processes: {_first_line(reason)}; kind='threads' sends nothing"
    return f"the run cannot be sent to worker processes: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
