"""How arrays and tensors lie in memory, and copies that lie alike.

What a kernel rounds to may hang on where an operand begins and how far apart its rows are: MKL's product of a float32
matrix and a vector hangs on the address modulo 16. What is allocated begins at a multiple of that; a view, such as
`np.split` and slices give, begins anywhere and has gaps, and a pickle or `copy.deepcopy` makes something new of it,
aligned and dense. A copy that lies alike takes the memory of the gaps, too. So what is mostly gaps, as one column of a
wide table, is copied without them, and begins where it would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALLOCATED = 16  # bytes: what the allocators of C, NumPy and torch give at least
_MOST = 4  # times its own bytes that an array may span, to be copied with its gaps

Bytes = NDArray[np.uint8]
Array = NDArray[Any]


def is_plain_tensor(value: Any) -> bool:
    """True for a dense tensor of the CPU that is nothing but its values."""
    if type(value) is not Tensor:
        return False
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    return plain and not value.is_conj() and not value.is_neg()


def is_plain_array(value: Any) -> bool:
    """True for an array of NumPy's own class that holds no Python objects."""
    return type(value) is np.ndarray and not value.dtype.hasobject


class Laid(NamedTuple):
    """How an array lies: the bytes from its first to its last, where in them its first element is, and its strides."""

    memory: Bytes
    place: int
    strides: tuple[int, ...]


def lies_as_new(value: Tensor | Array) -> bool:
    """True where a pickle of it is read as one that lies as a copy is to."""
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr() % _ALLOCATED == 0  # offset and strides are pickled
    if value.size == 0:
        return True
    dense = (_strides(value.shape, value.itemsize), _strides(value.shape[::-1], value.itemsize)[::-1])
    return address_of(value) % _ALLOCATED == 0 and (value.strides in dense or _is_mostly_gaps(value))


def laid(array: Array) -> Laid:
    """How a copy of it is to lie."""
    if _is_mostly_gaps(array):
        dense = np.ascontiguousarray(array)
        memory = copy_alike(dense.reshape(-1).view(np.uint8), phase_of(array))
        return Laid(memory, 0, dense.strides)
    low, high = _span(array)
    return Laid(np.asarray(_Memory(low, high - low, array)), address_of(array) - low, array.strides)


def _is_mostly_gaps(array: Array) -> bool:
    low, high = _span(array)
    return high - low > _MOST * array.nbytes


def _span(array: Array) -> tuple[int, int]:
    """The addresses of its first byte, and of that after its last."""
    low = high = address_of(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
    return low, high + array.itemsize


def storage_of(tensor: Tensor) -> Bytes:
    """All bytes of the memory that a plain tensor is a view of."""
    whole: Bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    return whole


def array_in(memory: Bytes | memoryview, dtype: np.dtype[Any], shape: Sequence[int], place: int, strides: Any) -> Array:
    """The array in that memory whose first element is at a place, in bytes."""
    return np.ndarray(shape, dtype, memory, place, strides)


def tensor_in(memory: Bytes, like: Tensor) -> Tensor:
    """The tensor in that memory that lies in it as another does in its storage."""
    view = torch.empty(0, dtype=like.dtype)
    return view.set_(torch.from_numpy(memory).untyped_storage(), like.storage_offset(), like.shape, like.stride())


def address_of(array: Array) -> int:
    """Where its first element is."""
    return int(array.ctypes.data)


def phase_of(memory: Array) -> int:
    """How far from a multiple of 16 bytes it begins: what is to be reserved before a copy."""
    return address_of(memory) % _ALLOCATED


def copy_alike(memory: bytes | Bytes, phase: int) -> Bytes:
    """A copy of bytes that begins as far from a multiple of 16."""
    room = np.empty(len(memory) + _ALLOCATED, np.uint8)
    begin = (phase - address_of(room)) % _ALLOCATED
    copy = room[begin : begin + len(memory)]
    copy[:] = np.frombuffer(memory, np.uint8)
    return copy


def as_it_lies(value: Tensor | Array) -> Tensor | Array:
    """A copy of a plain tensor or array that lies as it does."""
    if isinstance(value, Tensor):
        memory = storage_of(value)
        return tensor_in(copy_alike(memory, phase_of(memory)), value)
    memory, place, strides = laid(value)
    return array_in(copy_alike(memory, phase_of(memory)), value.dtype, value.shape, place, strides)


def _strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Of a dense array in the order of C."""
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * length)
    return tuple(strides[::-1]) if shape else ()


class _Memory:
    """Bytes at an address, which NumPy takes for an array; they live as long as what they belong to."""

    def __init__(self, address: int, nbytes: int, keep: Array) -> None:
        self.keep = keep
        self.__array_interface__ = {
            "data": (address, not keep.flags.writeable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
