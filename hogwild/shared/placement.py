"""How arrays and tensors lie in memory, and copies that lie alike.

What a kernel rounds to may hang on where an operand begins and how far apart its rows are: MKL's product of a float32
matrix and a vector hangs on the address modulo 16. What is allocated begins at a multiple of that; a view, such as
`np.split` and slices give, begins anywhere and has gaps, and a pickle or `copy.deepcopy` makes something new of it,
aligned and dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALLOCATED = 16  # bytes: what the allocators of C, NumPy and torch give at least

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


def lies_as_new(value: Tensor | Array) -> bool:
    """True where a pickle of it is read as one that lies alike."""
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr() % _ALLOCATED == 0  # offset and strides are pickled
    if value.size == 0:
        return True
    dense = (_strides(value.shape, value.itemsize), _strides(value.shape[::-1], value.itemsize)[::-1])
    return address_of(value) % _ALLOCATED == 0 and value.strides in dense


def memory_of(array: Array) -> tuple[Bytes, int]:
    """(the bytes that an array lies in, from its first to its last; where in them its first element is).

    Where that is most of what the array is a view of, it is all of that, so that the columns of a table share one.
    """
    first = low = address_of(array)
    high = first + array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
    owner = array.base
    if type(owner) is np.ndarray and owner.flags.forc and 2 * (high - low) >= owner.nbytes:
        low, high = address_of(owner), address_of(owner) + owner.nbytes
    return np.asarray(_Memory(low, high - low, array)), first - low


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
    memory, place = memory_of(value)
    return array_in(copy_alike(memory, phase_of(memory)), value.dtype, value.shape, place, value.strides)


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
