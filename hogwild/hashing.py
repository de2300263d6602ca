"""The digest of a state: SHA-256 over name, dtype, shape and bytes of every tensor, in name order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MARK_BYTES = 8


def digest_bytes(state: Mapping[str, Any]) -> bytes:
    """SHA-256 of a state dict of dense CPU tensors; entries that are not tensors do not count.

    The same bytes as `hogwild.digest`, which also takes modules, arrays and files, and checks what it is given.
    """
    sha = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if isinstance(tensor, Tensor):
            sha.update(header(name, str(tensor.dtype), tensor.shape))
            sha.update(raw_bytes(tensor))
    return sha.digest()


def header(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """What the digest takes of a tensor before its bytes; `dtype` as torch writes it, such as torch.float32."""
    return f"{name}\0{dtype}\0{list(shape)}\0".encode("utf-8", "surrogatepass")


def tensor_marks(state: Mapping[str, Tensor]) -> bytes:
    """Eight bytes of SHA-256 for each tensor of a state dict, in name order: enough to tell which ones differ."""
    return b"".join(hashlib.sha256(raw_bytes(state[name])).digest()[:MARK_BYTES] for name in sorted(state))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's elements in row-major order; no copy where it is contiguous."""
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
