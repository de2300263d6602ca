"""The digest of a model: SHA-256 over name, dtype, shape and bytes of every tensor, in name order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MARK_BYTES = 8


def digest(model: nn.Module | Mapping[str, Any]) -> str:
    """The digest of a module or of its state dict, which are the same: 64 hexadecimal digits.

    Tensors are taken in row-major order whatever their strides; entries that are not tensors do not count.
    """
    return digest_bytes(model.state_dict() if isinstance(model, nn.Module) else model).hex()


def digest_bytes(state: Mapping[str, Any]) -> bytes:
    """The same of a state dict, as 32 bytes."""
    sha = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if isinstance(tensor, Tensor):
            sha.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
            sha.update(raw_bytes(tensor))
    return sha.digest()


def tensor_marks(state: Mapping[str, Tensor]) -> bytes:
    """Eight bytes of SHA-256 for each tensor of a state dict, in name order: enough to tell which ones differ."""
    return b"".join(hashlib.sha256(raw_bytes(state[name])).digest()[:MARK_BYTES] for name in sorted(state))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's elements in row-major order; no copy where it is contiguous."""
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
