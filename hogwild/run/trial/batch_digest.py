"""The digest of a batch: how a resumed run knows its data again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.shared.hashing import header, raw_bytes

_BY_NAME = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, torch.Generator)  # no data


def batch_digest(batch: Any) -> str:
    """SHA-256 over the structure, shapes and bytes of a batch, and of the attributes of objects in it.

    Of what has no attributes, and is no plain value, the type only. Empty where it holds what cannot be hashed.
    """
    try:
        return _digest(batch).hex()
    except Exception:  # a batch may be anything, and nothing hangs on this
        return ""


def _digest(batch: Any) -> bytes:
    sha = hashlib.sha256()
    for piece in _pieces(batch):
        sha.update(piece)
    return sha.digest()


def _pieces(batch: Any) -> Iterator[bytes | memoryview]:
    if isinstance(batch, np.generic):
        batch = np.asarray(batch)
    if isinstance(batch, np.ndarray):
        plain = batch.dtype.kind in "biufc" and batch.dtype.isnative
        batch = torch.from_numpy(np.ascontiguousarray(batch)) if plain else batch.tolist()
    if isinstance(batch, Tensor):
        yield from _pieces_of_tensor(batch)
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from (_plain(key),) if isinstance(key, str | int) else _pieces(key)
            yield from _pieces(value)
    elif isinstance(batch, tuple | list):
        yield f"{len(batch)}\0".encode()
        for value in batch:
            yield from _pieces(value)
    elif isinstance(batch, Set):
        yield f"{len(batch)} of a set\0".encode()
        yield from sorted(map(_digest, batch))
    elif isinstance(batch, bool | int | float | complex | str | bytes | None):
        yield _plain(batch)
    else:
        yield from _pieces_of_object(batch)


def _plain(value: Any) -> bytes:
    return f"{type(value).__name__} {value!r}\0".encode("utf-8", "surrogatepass")


def _pieces_of_tensor(tensor: Tensor) -> Iterator[bytes | memoryview]:
    if tensor.layout is torch.strided:
        yield header("", str(tensor.dtype), tensor.shape)
        yield raw_bytes(tensor.cpu())
    else:
        yield header(str(tensor.layout), str(tensor.dtype), tensor.shape)
        rows = tensor if tensor.layout is torch.sparse_coo else tensor.to_sparse(layout=torch.sparse_coo)
        yield from _pieces((rows.coalesce().indices(), rows.coalesce().values()))


def _pieces_of_object(thing: Any) -> Iterator[bytes | memoryview]:
    """Its type, and what pickle would keep of it."""
    named = thing if isinstance(thing, _BY_NAME) and hasattr(thing, "__qualname__") else type(thing)
    yield f"{named.__module__}.{named.__qualname__}\0".encode()
    if not isinstance(thing, _BY_NAME):
        yield from _pieces(thing.__getstate__())
