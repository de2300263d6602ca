"""One anonymous piece of shared memory for a run.

Only this module knows that the memory is a file descriptor mapped into several processes; all others see tensors,
arrays and words.

The memory never has a name (`hogwild.shared.nameless`), so nothing is left behind by any kind of death, and a
container's small /dev/shm does not limit it. Tried on Linux; the temporary file was tried there too, in place of macOS.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hogwild.errors import ArgumentError
from hogwild.shared.bell import Bell
from hogwild.shared.limits import memory_limits
from hogwild.shared.nameless import nameless_file, space_in

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # what may be written need not have room in memory
_POPULATE_READ = 22  # of madvise, from Linux 5.14 on
ALIGNMENT = 64  # bytes; what torch's own allocator gives, so that vector loads see equal alignment everywhere


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """`nbytes` of zeroed shared memory, seen as tensors, arrays and 8-byte words; `used` is how much of it is to be
    memory before long, all of it if None.

    An arena may be pickled while a worker process is being started; it arrives there as the same memory, or,
    with `private=True`, as a copy-on-write view of it (a process that writes gets its own pages). A `bell` for the
    processes that see it travels with it.

    Raises:
        ArgumentError: the machine or its control group has less memory than that left, or does not give it.
    """

    descriptor = -1  # none

    def __init__(
        self, nbytes: int, *, private: bool = False, used: int | None = None, bell: Bell | None = None
    ) -> None:
        try:
            descriptor, folder = nameless_file()
            self._attach(descriptor, max(nbytes, ALIGNMENT), private, bell)
            _refuse_too_much(nbytes if used is None else used, folder)
            os.ftruncate(self.descriptor, self.nbytes)
            self._map = mmap.mmap(self.descriptor, self.nbytes)
        except ArgumentError:
            self.close()
            raise
        except (OSError, OverflowError) as error:
            self.close()
            why = error.strerror if isinstance(error, OSError) else "no machine has as much"
            raise ArgumentError(f"{nbytes / 1e6:,.0f} MB of shared memory cannot be had: {why}") from error

    def _attach(self, descriptor: int, nbytes: int, private: bool, bell: Bell | None) -> None:
        self.descriptor = descriptor
        self.nbytes = nbytes
        self.private = private
        self.bell = bell

    def __getstate__(self) -> dict[str, Any]:
        return {
            "descriptor": reduction.DupFd(self.descriptor),
            "nbytes": self.nbytes,
            "private": self.private,
            "bell": self.bell,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["descriptor"].detach(), state["nbytes"], state["private"], state["bell"])
        flags = mmap.MAP_PRIVATE if self.private else mmap.MAP_SHARED
        self._map = mmap.mmap(self.descriptor, self.nbytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Give back the file descriptor. The memory goes with the last tensor that looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()

    def map_in(self, offset: int, nbytes: int) -> None:
        """Map these bytes into this process at once, rather than page by page where each is first written.

        Pages that are there already come 16 to a fault then, and may be written as well: 52 MB take 4 ms, and 16 by
        faults of a page each (Linux 6.18). Where the kernel cannot, they come as they are used.
        """
        if sys.platform == "linux" and nbytes:
            start = offset - offset % mmap.PAGESIZE
            with suppress(OSError):
                self._map.madvise(_POPULATE_READ, start, offset + nbytes - start)

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


def _refuse_too_much(nbytes: int, folder: str | None) -> None:
    for what, free in _limits(folder):
        if nbytes > free:
            raise ArgumentError(
                f"this run needs {nbytes / 1e6:,.0f} MB of shared memory, over the {free / 1e6:,.0f} MB left of the "
                f"{what}; a smaller model, fewer workers or a smaller staleness needs less"
            )


def _limits(folder: str | None) -> Iterator[tuple[str, int]]:
    yield from memory_limits()
    if folder is not None:
        yield f"space in {folder}, where it is a file (TMPDIR may name another folder)", space_in(folder)


class Space:
    """Hands out offsets in an arena that is still to be made: reserve everything, then make it once.

    `nbytes` is what was reserved, and `used` how much of it is memory before long: a page that nobody writes is none.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.used = 0

    def reserve(self, nbytes: int, used: int | None = None) -> int:
        """The offset of `nbytes` bytes that nobody else has; of which so many are `used`, all if None."""
        offset, self.nbytes = self.nbytes, self.nbytes + aligned(nbytes)
        self.used += aligned(nbytes if used is None else used)
        return offset


def map_file(descriptor: int) -> memoryview:
    """All bytes of a file that is not empty, mapped copy-on-write; it may be larger than memory (Linux)."""
    return memoryview(mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE))


def as_tensor(view: memoryview) -> Tensor:
    """The bytes of a view as a uint8 tensor of one dimension, on the same memory."""
    return torch.frombuffer(view, dtype=torch.uint8) if view.nbytes else torch.empty(0, dtype=torch.uint8)
