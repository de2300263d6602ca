"""Private copies of gradients: memory that is used again, once nobody has anything that lies in it.

    copy → clipped, stepped by → dropped → its memory is the next copy's
                               → kept, as an optimizer of the user's may → the next copy's is fresh

A fresh copy of a large gradient at each update is memory that the system gives page by page, and takes back.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 1 << 16  # bytes; smaller ones, which torch's allocator has at hand, are not worth a place of their own


class CopyRoom:
    """Memory for copies of the gradients of one parameter, one after the other; none before the first.

    What is given lies in an array of its own, which lives as long as any tensor or view that lies there: no copy is
    written over that somebody still has.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._given: weakref.ref[Any] | None = None

    def copy_of(self, gradient: Tensor, stride: Sequence[int]) -> Tensor:
        """A dense copy with these strides."""
        if gradient.numel() * gradient.dtype.itemsize < _LARGE:
            copy = torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype)
        else:
            copy = self._large(gradient.shape, stride, gradient.dtype)
        return copy.copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def _large(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        nbytes = (last + 1) * dtype.itemsize
        if len(self._memory) != nbytes or (self._given is not None and self._given() is not None):
            self._memory = torch.empty(nbytes, dtype=torch.uint8).numpy()  # placed as torch places its tensors
        array = self._memory[:]
        self._given = weakref.ref(array)
        return torch.empty(0, dtype=dtype).set_(torch.from_numpy(array).untyped_storage(), 0, shape, stride)
