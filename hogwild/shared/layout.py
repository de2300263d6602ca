"""Where tensors lie in a block of memory: parameters of one group and dtype side by side, as one flat range.

slot    │ parameters: one flat range per (group, dtype), each tensor at a multiple of 64 bytes │ buffers │
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.errors import ArgumentError
from hogwild.shared.arena import Arena, aligned


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

    def without(self, tables: Collection[int]) -> Layout:
        """The same with no rows of those tensors, which lie elsewhere; every tensor keeps its number."""
        entries, ranges = dict(enumerate(self.entries)), []
        offset = 0
        for span in self.ranges:
            first = offset
            for i in span.members:
                entry = entries[i]
                if i in tables:
                    entry = replace(entry, shape=(0, *entry.shape[1:]), numel=0)
                entries[i] = replace(entry, offset=offset)
                offset += aligned(entry.numel * entry.dtype.itemsize)
            ranges.append(replace(span, offset=first, numel=(offset - first) // span.dtype.itemsize))
        return Layout(tuple(entries[i] for i in range(len(entries))), tuple(ranges), offset)

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

    def at(self, offset: int) -> Block:
        """The same from so many bytes on."""
        return Block(lambda inner, numel, dtype: self.flat(offset + inner, numel, dtype))

    @classmethod
    def of(cls, raw: Tensor) -> Block:
        """The bytes of a uint8 tensor that starts at a multiple of 64."""
        return cls(lambda inner, numel, dtype: raw[inner : inner + numel * dtype.itemsize].view(dtype))

    @classmethod
    def shared(cls, arena: Arena, offset: int) -> Block:
        """The bytes of `arena` from `offset` on."""
        return cls(lambda inner, numel, dtype: arena.tensor(offset + inner, numel, dtype))

    @classmethod
    def private(cls, nbytes: int) -> Block:
        """`nbytes` of zeroed private memory, aligned as shared memory is."""
        return cls.of(torch.zeros(nbytes, dtype=torch.uint8))
