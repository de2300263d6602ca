"""Gradient slots: gradients that workers share, with what else a forward pass left."""

from __future__ import annotations

import torch

from hogwild.shared.arena import Arena
from hogwild.shared.layout import Block, Layout


class GradientSlot:
    """One shared gradient with what else a forward pass left.

    `tensors` holds one view per parameter and `flats` one tensor per range; `present[i]` is 1 where parameter i
    received a gradient; `buffers` are the buffers after the forward pass; `loss` (float64, shape (1,)) is the batch's
    loss; `words` are two words for the rule's own use.
    """

    def __init__(self, parameters: Layout, buffers: Layout, arena: Arena, offset: int) -> None:
        block = Block.shared(arena, offset)
        self.tensors = parameters.views(block)
        self.flats = parameters.flats(block)
        offset += parameters.nbytes
        self.buffers = buffers.views(Block.shared(arena, offset))
        offset += buffers.nbytes
        self.words = arena.words(offset, 2)
        self.loss = arena.tensor(offset + 16, 1, torch.float64)
        self.present = arena.words(offset + 24, len(parameters.entries))

    @staticmethod
    def size(parameters: Layout, buffers: Layout) -> int:
        """Bytes of one gradient slot."""
        return parameters.nbytes + buffers.nbytes + 8 * (3 + len(parameters.entries))
