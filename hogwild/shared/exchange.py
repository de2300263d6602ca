"""The values that machines which train apart average: one block of shared memory, which two sides use in turn.

    workers    model ── copied, PROPOSED = version ──▶ block ── sent ──▶ machine 0, which adds up those of all
               model ◀── copied, ADOPTED = version ─── block ◀── AVERAGED = version, the mean is there ── the averager

Invariant: while AVERAGED < PROPOSED the block is the averager's, and else that of whoever holds the commit lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hogwild.shared.copying import copy_all
from hogwild.shared.layout import Block, Layout


class Exchange:
    """Values of one machine, laid out as those of every other.

    Args:
        parameters: their layout.
        copies: how many tensors there are of each: the parameter itself, and what is kept beside it.
        buffers: the layout of the model's buffers.
        block: where they lie.
    """

    def __init__(self, parameters: Layout, copies: int, buffers: Layout, block: Block) -> None:
        places = [block.at(number * parameters.nbytes) for number in range(copies)]
        last = buffers.views(block.at(copies * parameters.nbytes))
        self._tensors = [*(view for place in places for view in parameters.views(place)), *last]
        self.parts = [parameters.flats(place) for place in places]
        self.flats = [*(flat for part in self.parts for flat in part), *last]

    @staticmethod
    def size(parameters: Layout, copies: int, buffers: Layout) -> int:
        """Bytes of the block."""
        return copies * parameters.nbytes + buffers.nbytes

    def take(self, values: Sequence[Tensor]) -> None:
        """Copy values in: of each copy all parameters, then the buffers."""
        copy_all(self._tensors, values)

    def give(self, targets: Sequence[Tensor]) -> None:
        """Copy values out."""
        copy_all(targets, self._tensors)
