"""The digest of a batch: how a resumed run knows its data again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.shared.hashing import header, raw_bytes


def batch_digest(batch: Any) -> str:
    """SHA-256 over the structure, shapes and bytes of a batch; of objects that hold no tensors, their types only.

    Empty where it holds what cannot be hashed.
    """
    sha = hashlib.sha256()
    try:
        for piece in _pieces(batch):
            sha.update(piece)
    except Exception:  # a batch may be anything, and nothing hangs on this
        return ""
    return sha.hexdigest()


def _pieces(batch: Any) -> Iterator[bytes | memoryview]:
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biufc":
        batch = torch.from_numpy(np.ascontiguousarray(batch)) if batch.dtype.isnative else batch.tolist()
    if isinstance(batch, Tensor) and batch.layout is torch.strided and batch.device.type == "cpu":
        yield header("", str(batch.dtype), batch.shape)
        yield raw_bytes(batch)
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield f"{type(key).__name__} {key!r}\0".encode() if isinstance(key, str | int) else b"\0"
            yield from _pieces(value)
    elif isinstance(batch, tuple | list):
        yield f"{len(batch)}\0".encode()
        for value in batch:
            yield from _pieces(value)
    elif isinstance(batch, bool | int | float | str | bytes | None):
        yield f"{type(batch).__name__} {batch!r}\0".encode()
    else:
        yield f"{type(batch).__module__}.{type(batch).__qualname__}\0".encode()
