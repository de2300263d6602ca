"""Where tensors live: one anonymous piece of shared memory for a run, and the layout of what lies in it.

    arena   ┌─────────┬─────────┬────────┬────────┬─────┬────────┬───────────────────┐
            │ control │ journal │ slot 0 │ slot 1 │ ... │ frozen │ optimizer state …  │
            └─────────┴─────────┴────────┴────────┴─────┴────────┴───────────────────┘
    slot    │ parameters: one flat range per (group, dtype), each tensor at a multiple of 64 bytes │ buffers │

Legend: K slots, P parameters. Only this module knows that the memory is a file descriptor mapped into
several processes; all others see tensors.

The memory never has a name (`memfd_create` on Linux, an unlinked temporary file elsewhere), so nothing is
left behind by any kind of death, and a container's small /dev/shm does not limit it. Tried on Linux; the
temporary file was tried there too, in place of macOS.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.errors import ArgumentError
from hogwild.limits import memory_limits

ALIGNMENT = 64  # bytes; what torch's own allocator gives, so that vector loads see equal alignment everywhere


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """`nbytes` of zeroed shared memory, seen as tensors, arrays and 8-byte words.

    An arena may be pickled while a worker process is being started; it arrives there as the same memory, or,
    with `private=True`, as a copy-on-write view of it (a process that writes gets its own pages).

    Raises:
        ArgumentError: the machine or its control group has less memory than that left, or does not give it.
    """

    descriptor = -1  # none

    def __init__(self, nbytes: int, *, private: bool = False) -> None:
        try:
            _refuse_too_much(nbytes)
            self._attach(_anonymous_file(), max(nbytes, ALIGNMENT), private)
            os.ftruncate(self.descriptor, self.nbytes)
            self._map = mmap.mmap(self.descriptor, self.nbytes)
        except (OSError, OverflowError) as error:
            self.close()
            why = error.strerror if isinstance(error, OSError) else "no machine has as much"
            raise ArgumentError(f"{nbytes / 1e6:,.0f} MB of shared memory cannot be had: {why}") from error

    def _attach(self, descriptor: int, nbytes: int, private: bool) -> None:
        self.descriptor = descriptor
        self.nbytes = nbytes
        self.private = private

    def __getstate__(self) -> dict[str, Any]:
        return {
            "descriptor": reduction.DupFd(self.descriptor),
            "nbytes": self.nbytes,
            "private": self.private,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["descriptor"].detach(), state["nbytes"], state["private"])
        flags = mmap.MAP_PRIVATE if self.private else mmap.MAP_SHARED
        self._map = mmap.mmap(self.descriptor, self.nbytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Give back the file descriptor. The memory goes with the last tensor that looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()

    def tensor(self, offset: int, numel: int, dtype: torch.dtype) -> Tensor:
        """A 1-dim tensor of `numel` elements that starts `offset` bytes into the arena."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=numel, offset=offset)

    def array(self, offset: int, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A 1-dim numpy array of `length` elements that starts `offset` bytes into the arena."""
        if length == 0:
            return np.empty(0, dtype)
        return np.frombuffer(self._map, dtype=dtype, count=length, offset=offset)

    def words(self, offset: int, length: int) -> memoryview[int]:
        """`length` signed 8-byte words. Reading or writing one is one aligned load or store."""
        span = memoryview(self._map)[offset : offset + 8 * length]
        return span.cast("q")

    def bytes(self, offset: int, length: int) -> memoryview:
        """`length` raw bytes that start `offset` bytes into the arena."""
        return memoryview(self._map)[offset : offset + length]


def _refuse_too_much(nbytes: int) -> None:
    for what, free in memory_limits():
        if nbytes > free:
            raise ArgumentError(
                f"this run needs {nbytes / 1e6:,.0f} MB of shared memory, over the {free / 1e6:,.0f} MB left of the "
                f"{what}; a smaller model, fewer workers or a smaller staleness needs less"
            )


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hogwild", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Space:
    """Hands out offsets in an arena that is still to be made: reserve everything, then make it once."""

    def __init__(self) -> None:
        self.nbytes = 0

    def reserve(self, nbytes: int) -> int:
        """The offset of `nbytes` bytes that nobody else has."""
        offset, self.nbytes = self.nbytes, self.nbytes + aligned(nbytes)
        return offset


@dataclass(frozen=True)
class Entry:
    """One tensor of a layout: `offset` in bytes from the start of the block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    numel: int
    offset: int


@dataclass(frozen=True)
class Range:
    """A flat run of neighbouring tensors of one group and one dtype; `numel` counts the padding between them."""

    group: int
    dtype: torch.dtype
    offset: int
    numel: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where each of a list of tensors lies in a block of `nbytes` bytes.

    `entries` keeps the order of the list; in the block, tensors of one group and one dtype are neighbours, so
    that each `Range` is one flat tensor.
    """

    entries: tuple[Entry, ...]
    ranges: tuple[Range, ...]
    nbytes: int

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, Tensor]], groups: Sequence[int] | None = None) -> Layout:
        """The layout of named tensors; `groups[i]` is the parameter group of tensor i (all one group if None).

        Raises:
            ArgumentError: a tensor whose elements overlap or leave gaps, which no flat buffer can hold.
        """
        groups = groups or [0] * len(tensors)
        order = sorted(range(len(tensors)), key=lambda i: (groups[i], str(tensors[i][1].dtype), i))
        entries: dict[int, Entry] = {}
        ranges: list[Range] = []
        offset = 0
        for i in order:
            name, tensor = tensors[i]
            if not is_dense(tensor):
                raise ArgumentError(
                    f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, whose elements overlap "
                    f"or leave gaps; make it .contiguous()"
                )
            shape, stride = tuple(tensor.shape), tensor.stride()
            entries[i] = Entry(name, tensor.dtype, shape, stride, tensor.numel(), offset)
            end = offset + aligned(tensor.numel() * tensor.element_size())
            last = ranges[-1] if ranges else None
            if last is None or (last.group, last.dtype) != (groups[i], tensor.dtype):
                last = Range(groups[i], tensor.dtype, offset, 0, ())
                ranges.append(last)
            numel = (end - last.offset) // tensor.element_size()
            ranges[-1] = Range(last.group, last.dtype, last.offset, numel, (*last.members, i))
            offset = end
        return cls(tuple(entries[i] for i in range(len(tensors))), tuple(ranges), offset)

    def views(self, block: Block) -> list[Tensor]:
        """The tensors of the layout in that block, in the order of the list."""
        return [
            block.flat(entry.offset, entry.numel, entry.dtype).as_strided(entry.shape, entry.stride)
            for entry in self.entries
        ]

    def flats(self, block: Block) -> list[Tensor]:
        """One 1-dim tensor per range, padding included."""
        return [block.flat(span.offset, span.numel, span.dtype) for span in self.ranges]


def is_dense(tensor: Tensor) -> bool:
    """True when the elements fill one run of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


@dataclass(frozen=True)
class Block:
    """A place that a layout can be laid on: bytes of an arena, or private memory of this process."""

    flat: Callable[[int, int, torch.dtype], Tensor]

    @classmethod
    def shared(cls, arena: Arena, offset: int) -> Block:
        """The bytes of `arena` from `offset` on."""
        return cls(lambda inner, numel, dtype: arena.tensor(offset + inner, numel, dtype))

    @classmethod
    def private(cls, nbytes: int) -> Block:
        """`nbytes` of zeroed private memory, aligned as shared memory is."""
        raw = torch.zeros(nbytes, dtype=torch.uint8)

        def flat(inner: int, numel: int, dtype: torch.dtype) -> Tensor:
            return raw[inner : inner + numel * dtype.itemsize].view(dtype)

        return cls(flat)


def as_tensor(view: memoryview) -> Tensor:
    """The bytes of a view as a uint8 tensor of one dimension, on the same memory."""
    return torch.frombuffer(view, dtype=torch.uint8)
