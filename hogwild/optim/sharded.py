"""The step of one shard: from the newest version into the next, by whoever is at it.

What a step reads is what nobody writes meanwhile: the newest version, its state, and gradients that wait in slots. What
it writes, shared numbers included, depends on that alone, so a shard that was left half done is done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hogwild.optim.gradients import mean_of
from hogwild.optim.step_form import ROOMS, Rooms, WrittenStep
from hogwild.shared.optimizer_state import AVERAGE, PARAMETER, OptimizerState, StateForm
from hogwild.shared.shards import Piece, Shard
from hogwild.shared.slots import Slot


class Gradients(Protocol):
    """What is read of a gradient slot."""

    tensors: list[Tensor]
    flats: list[Tensor]


class ShardedStep:
    """Steps shards of a version.

    Args:
        form: of the optimizer's state.
        shards: as cut from it.
        written: the step.
        decay: of the moving average, where one is kept.
    """

    def __init__(
        self, form: StateForm, shards: Sequence[Shard], written: WrittenStep, decay: float | None = None
    ) -> None:
        self._form = form
        self._shards = shards
        self._step = written
        self._decay = decay
        self._rooms = self._make_rooms([piece for shard in shards for piece in shard])

    def advance(
        self,
        shard: int,
        groups: Sequence[Mapping[str, Any]],
        parts: Sequence[Gradients],
        old: Slot,
        new: Slot,
        before: OptimizerState,
        after: OptimizerState,
    ) -> None:
        """Step a shard by the mean of the gradients in `parts`, each of which has all of them, dense."""
        for piece in self._shards[shard]:
            members = self._members(piece)
            step, mean = self._rooms[piece]
            cuts = [self._cut(part.flats, part.tensors, piece) for part in parts]
            gradient = mean_of(cuts, len(cuts), mean) if len(cuts) > 1 else cuts[0]
            source, target = (self._cut(slot.flats, slot.parameters, piece) for slot in (old, new))
            states, begun = (self._state(before, piece), self._state(after, piece)), bool(before.started[members[0]])
            self._step(groups[self._group(piece)], source, gradient, *states, target, step, begun)
            if self._decay is not None:
                value = states[1].get(PARAMETER, target)  # the slot may hold what is predicted
                torch.lerp(states[0][AVERAGE], value, 1 - self._decay, out=states[1][AVERAGE])
            for i in members:
                after.started[i] = 1
            if self._form.flat:
                after.ragged[piece.number] = 0

    def _make_rooms(self, pieces: Sequence[Piece]) -> dict[Piece, tuple[Rooms, Tensor]]:
        """Private memory for a step, and for a mean; the same for all pieces, for one is stepped at a time."""
        sizes = {piece: (piece.stop - piece.start) * self._dtype(piece).itemsize for piece in pieces}
        memory = torch.empty((ROOMS + 1, max(sizes.values())), dtype=torch.uint8)
        rooms = {piece: [row[:size].view(self._dtype(piece)) for row in memory] for piece, size in sizes.items()}
        return {piece: (Rooms(own[:ROOMS], races=False), own[ROOMS]) for piece, own in rooms.items()}

    def _dtype(self, piece: Piece) -> torch.dtype:
        layout = self._form.layout
        return layout.ranges[piece.number].dtype if self._form.flat else layout.entries[piece.number].dtype

    def _members(self, piece: Piece) -> tuple[int, ...]:
        return self._form.layout.ranges[piece.number].members if self._form.flat else (piece.number,)

    def _group(self, piece: Piece) -> int:
        if self._form.flat:
            return self._form.layout.ranges[piece.number].group
        return next(span.group for span in self._form.layout.ranges if piece.number in span.members)

    def _cut(self, flats: Sequence[Tensor], tensors: Sequence[Tensor], piece: Piece) -> Tensor:
        if self._form.flat:
            return flats[piece.number][piece.start : piece.stop]
        return _flat(tensors[piece.number])[piece.start : piece.stop]

    def _state(self, state: OptimizerState, piece: Piece) -> dict[str, Tensor]:
        """What has a value per element, cut; what is one number for all, whole: each shard of them stores the same."""
        cells = self._form.cells[self._members(piece)[0]]
        values = (state.flats if self._form.flat else state.tensors)[piece.number]
        return {
            key: _flat(value)[piece.start : piece.stop] if cells[key].like else value for key, value in values.items()
        }


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))
