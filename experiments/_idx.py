"""The files of MNIST. What they say of themselves is checked before it is believed.

The IDX format (LeCun, Cortes & Burges): two zero bytes, a type code (8: unsigned byte), the number of dimensions, the
size of each as a big-endian 32-bit integer, then the values, the last dimension fastest.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from hogwild.errors import ArgumentError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MOST_BYTES = 1 << 30  # of values in one file; MNIST has 47 million
CLASSES = 10


def mnist(folder: Path | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images of shape [N, 1, 28, 28] in 0..1 with labels [N]: to train on, and to test on.

    Args:
        folder: where the four files are, gzipped or not.

    Raises:
        ArgumentError: a file is missing or is not what it should be.
    """
    if folder is None:
        raise ArgumentError(
            f"no folder of data given; --data FOLDER names one with {', '.join(FILES)} (or .gz of each)"
        )
    return _part(folder, "train"), _part(folder, "t10k")


def _part(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    images = read_idx(_path(folder, f"{name}-images-idx3-ubyte"), dimensions=3)
    path = _path(folder, f"{name}-labels-idx1-ubyte")
    labels = read_idx(path, dimensions=1)
    if images.shape[1:] != (28, 28):
        raise ArgumentError(
            f"{folder} holds images of {images.shape[1]} × {images.shape[2]} pixels; MNIST's are 28 × 28"
        )
    if len(images) != len(labels):
        raise ArgumentError(f"{path} holds {len(labels)} labels for {len(images)} images; each image needs one")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise ArgumentError(f"{path} holds the label {int(labels.max())}; labels are 0 to {CLASSES - 1}")
    return images.unsqueeze(1).float() / 255, labels.long()


def _path(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ArgumentError(f"{folder} has no file {name} or {name}.gz; put MNIST's four there: {', '.join(FILES)}")


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The unsigned bytes of an IDX file, gzipped or not, in the shape that it says.

    Raises:
        ArgumentError: it is no such file, has other dimensions, or is shorter or longer than it says.
    """
    try:
        with cast("BinaryIO", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            return _read(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise ArgumentError(f"{path} cannot be read: {error}; fetch it again") from error


def _read(file: BinaryIO, path: Path, dimensions: int) -> Tensor:
    head = file.read(4 + 4 * dimensions)
    if head[:4] != bytes((0, 0, 8, dimensions)) or len(head) < 4 + 4 * dimensions:
        raise ArgumentError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions; fetch it again")
    shape = [int.from_bytes(head[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    wanted = prod(shape)
    if not 0 < wanted <= MOST_BYTES:
        raise ArgumentError(f"{path} says that it holds {wanted} values; 1 to {MOST_BYTES} are read")
    values = bytearray(file.read(wanted + 1))
    if len(values) != wanted:
        found = "more" if len(values) > wanted else str(len(values))
        raise ArgumentError(f"{path} says that it holds {wanted} values and holds {found}; fetch it again")
    return torch.frombuffer(values, dtype=torch.uint8).view(shape)
