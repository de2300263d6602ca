"""Files that this process has mapped, as `np.memmap` does: other processes map them again, instead of a copy.

So data that are larger than memory stay on the disk, whoever reads them. Which memory is a file's is told by Linux;
elsewhere nothing is found, and is copied. A mapping that is private to this process is no file's, for it may have been
written to. What others write to the file while it is mapped is seen.
"""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hogwild.errors import ArgumentError
from hogwild.shared.arena import map_file
from hogwild.shared.placement import Array, Bytes, address_of, array_in, laid

_MOST = 32  # files; a fork server takes a few hundred numbers at once


class FilePiece(NamedTuple):
    """Bytes of a file: the number of the file, where they begin in it, and how many they are."""

    file: int
    offset: int
    nbytes: int


class _Region(NamedTuple):
    """Memory from `start` to `end` that is that of a file, from an offset on."""

    start: int
    end: int
    offset: int
    inode: int
    path: str


class MappedFiles:
    """Pieces of files, found in the memory of this process; where it is unpickled, while a worker process is being
    started, they are mapped copy-on-write."""

    def __init__(self) -> None:
        self._regions: list[_Region] | None = None
        self._numbers: dict[str, int] = {}
        self._descriptors: list[int] = []
        self._maps: dict[int, memoryview] = {}  # one of each file, for each keeps a descriptor of its own

    def piece(self, memory: Bytes) -> FilePiece | None:
        """What of which file those bytes are; None where they are none, or the file has gone or become another."""
        if self._regions is None:
            self._regions = _regions()
        start, end = address_of(memory), address_of(memory) + memory.nbytes
        for one in self._regions:
            if one.start <= start and end <= one.end and memory.nbytes:
                number, offset = self._number(one), one.offset + start - one.start
                if number is None or os.fstat(self._descriptors[number]).st_size < offset + memory.nbytes:
                    return None
                return FilePiece(number, offset, memory.nbytes)
        return None

    def _number(self, region: _Region) -> int | None:
        if region.path not in self._numbers and len(self._descriptors) < _MOST:
            with suppress(OSError):
                if not Path(region.path).is_file():
                    return None
                descriptor = os.open(region.path, os.O_RDONLY | os.O_CLOEXEC)
                if os.fstat(descriptor).st_ino != region.inode:
                    os.close(descriptor)
                    return None
                self._numbers[region.path] = len(self._descriptors)
                self._descriptors.append(descriptor)
        return self._numbers.get(region.path)

    def view(self, piece: FilePiece) -> memoryview:
        """Those bytes, which the process may write to for itself; the same memory each time.

        Raises:
            ArgumentError: the file has become shorter meanwhile.
        """
        descriptor = self._descriptors[piece.file]
        if piece.file not in self._maps and os.fstat(descriptor).st_size:
            self._maps[piece.file] = map_file(descriptor)
        memory = self._maps.get(piece.file, memoryview(b""))[piece.offset : piece.offset + piece.nbytes]
        if memory.nbytes < piece.nbytes:
            raise ArgumentError("a file that data lie in, mapped (np.memmap), has become shorter while a run needs it")
        return memory

    def again(self, array: Array) -> Array | None:
        """An `np.memmap` on the file of another one, which may be written to and changes no file; None where that is no
        file's, or is mostly gaps."""
        memory, place, strides = laid(np.asarray(array))
        piece = self.piece(memory)
        if piece is None:
            return None
        return array_in(self.view(piece), array.dtype, array.shape, place, strides).view(np.memmap)

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptors": [reduction.DupFd(one) for one in self._descriptors]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._descriptors = [one.detach() for one in state["descriptors"]]

    def close(self) -> None:
        """Give back the file descriptors. What has been mapped stays."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._numbers.clear()

    def __del__(self) -> None:
        self.close()


def _regions() -> list[_Region]:
    """Memory of this process that others who map the file see as well; where it is in memory alone, it is left out."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]:
            place, allowed, offset, _, inode, *path = line.split(maxsplit=5)
            if path and allowed[0] == "r" and allowed[3] == "s" and not path[0].startswith(("/dev/", "/memfd:")):
                start, end = (int(number, 16) for number in place.split("-"))
                found.append(_Region(start, end, int(offset, 16), int(inode), path[0]))
    return found
