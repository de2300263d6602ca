"""Shards: pieces of the parameters that are stepped by themselves, so that several workers make one version.

Invariant: where shards are cut follows from the layout and the optimizer alone, never from the workers. Elements do not
depend on each other, so no bit does on how they are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hogwild.shared.optimizer_state import StateForm

SHARD = 1 << 19  # elements: about a millisecond of a step, and a lock takes a microsecond


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of one range where ranges are stepped whole, else of one parameter."""

    number: int
    start: int
    stop: int


Shard = tuple[Piece, ...]


def cut_shards(form: StateForm, size: int = SHARD) -> tuple[Shard, ...]:
    """The shards of that layout, each of about `size` elements; none where there would be one."""
    numels = [span.numel for span in form.layout.ranges] if form.flat else [e.numel for e in form.layout.entries]
    shards: list[Shard] = []
    pieces: list[Piece] = []
    for piece in _pieces(numels, size):
        pieces.append(piece)
        if _numel(pieces) >= size:
            shards.append(tuple(pieces))
            pieces = []
    if pieces:
        shards.append(tuple(pieces))
    return tuple(shards) if len(shards) > 1 else ()


def _pieces(numels: Sequence[int], size: int) -> list[Piece]:
    return [
        Piece(number, start, min(start + size, numel))
        for number, numel in enumerate(numels)
        for start in range(0, numel, size)
    ]


def _numel(pieces: Sequence[Piece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)
