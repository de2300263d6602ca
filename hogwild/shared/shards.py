"""Shards: pieces of the parameters that are stepped by themselves, so that several workers make one version.

Invariant: where shards are cut follows from the layout and the optimizer alone, never from the workers. Elements do not
depend on each other, so no bit does on how they are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.shared.optimizer_state import StateForm

SHARD = 1 << 19  # elements of one at most: about a millisecond of a step, and a lock takes a microsecond
MOST = 8  # shards of a version, where they are smaller than that
_LEAST = 1 << 16  # elements: about as long as waking somebody takes
_LINE = 16  # elements: no two shards write to one cache line


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of one range where ranges are stepped whole, else of one parameter."""

    number: int
    start: int
    stop: int


Shard = tuple[Piece, ...]


def cut_shards(form: StateForm, size: int | None = None) -> tuple[Shard, ...]:
    """The shards of that layout, all about as large, each of at most about `size` elements; none where there would be
    one."""
    numels = [span.numel for span in form.layout.ranges] if form.flat else [e.numel for e in form.layout.entries]
    total = sum(numels)
    size = size or min(SHARD, max(_LEAST, -(-total // MOST)))
    number = -(-total // size)
    each = _lines(-(-total // max(1, number)))
    shards: list[Shard] = []
    pieces: list[Piece] = []
    room = each
    for place, numel in enumerate(numels):
        start = 0
        while start < numel:
            stop = min(start + _lines(room), numel)
            pieces.append(Piece(place, start, stop))
            room -= stop - start
            start = stop
            if room <= 0:
                shards.append(tuple(pieces))
                pieces, room = [], each
    if pieces:
        shards.append(tuple(pieces))
    return tuple(shards) if len(shards) > 1 else ()


def _lines(elements: int) -> int:
    """So many, or a few more that fill a cache line."""
    return -(-elements // _LINE) * _LINE
