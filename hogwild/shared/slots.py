"""Slots: full copies of the model in shared memory. Rules in place have one, versioned rules a ring of them."""

from __future__ import annotations

from hogwild.shared.arena import Arena
from hogwild.shared.layout import Block, Layout


class Slot:
    """One full copy of parameters and buffers, but for tables that are kept by rows: of those there is one.

    `parameters` and `buffers` hold one view per tensor, in layout order; `flats` one 1-dim tensor per parameter range.
    """

    def __init__(self, parameters: Layout, buffers: Layout, arena: Arena, offset: int) -> None:
        block = Block.shared(arena, offset)
        self.parameters = parameters.views(block)
        self.flats = parameters.flats(block)
        self.buffers = buffers.views(Block.shared(arena, offset + parameters.nbytes))
        self.parameter_bytes = arena.bytes(offset, parameters.nbytes)
        self.bytes = arena.bytes(offset, parameters.nbytes + buffers.nbytes)

    def copy_parameters(self, other: Slot) -> None:
        """Make the parameters equal to those of another slot, but for tables, which lie in none."""
        self.parameter_bytes[:] = other.parameter_bytes

    def copy_from(self, other: Slot) -> None:
        """Become equal to another slot."""
        self.bytes[:] = other.bytes
