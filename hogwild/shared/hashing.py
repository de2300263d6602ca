"""The digest of a state: SHA-256 over name, dtype, shape and bytes of every tensor, in name order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MARK_BYTES = 8


def digest_bytes(state: Mapping[str, Any]) -> bytes:
    """SHA-256 of a state dict of dense CPU tensors; entries that are not tensors do not count.

    The same bytes as `hogwild.digest`, which also takes modules, arrays and files, and checks what it is given.
    """
    return Hasher({name: value for name, value in state.items() if isinstance(value, Tensor)}).digest()


class Hasher:
    """Hashes one state dict of dense CPU tensors, again and again as its values change in place."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._pieces = [
            (header(name, str(tensor.dtype), tensor.shape), raw_bytes(tensor) if tensor.is_contiguous() else tensor)
            for name, tensor in sorted(state.items())
        ]

    def digest(self) -> bytes:
        """SHA-256 over header and bytes of every tensor, in name order."""
        sha = hashlib.sha256()
        for (head, _), content in zip(self._pieces, self._contents(), strict=True):
            sha.update(head)
            sha.update(content)
        return sha.digest()

    def marks(self) -> bytes:
        """Eight bytes of SHA-256 for each tensor, in name order: enough to tell which ones differ."""
        return b"".join(hashlib.sha256(content).digest()[:MARK_BYTES] for content in self._contents())

    def _contents(self) -> Iterator[memoryview]:
        """The bytes of each tensor, one after another: those that are not contiguous are copied anew."""
        return (values if isinstance(values, memoryview) else raw_bytes(values) for _, values in self._pieces)


def header(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """What the digest takes of a tensor before its bytes; `dtype` as torch writes it, such as torch.float32."""
    return f"{name}\0{dtype}\0{list(shape)}\0".encode("utf-8", "surrogatepass")


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's elements in row-major order; no copy where it is contiguous."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return _as_bytes(tensor).numpy().data


def _as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride(0) != 1:  # a single element that was expanded counts as contiguous
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def is_extra(name: object) -> bool:
    """True for the name of the extra state of a module, as torch makes it."""
    return isinstance(name, str) and name.rpartition(".")[2] == "_extra_state"


def equal_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """True where two tensors have one form and the same bytes, NaN and −0 included; None is only as None."""
    if a is None or b is None:
        return a is b
    if a.layout is not b.layout or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.layout is torch.sparse_coo:
        return equal_bits(a._indices(), b._indices()) and equal_bits(a._values(), b._values())
    if a.numel() == 0:
        return True
    return torch.equal(_as_bytes(a), _as_bytes(b))
