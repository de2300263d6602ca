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
from hogwild.shared.arena import aligned
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
        written: the step of each group.
        decay: of the moving average, where one is kept.
    """

    def __init__(
        self, form: StateForm, shards: Sequence[Shard], written: Sequence[WrittenStep], decay: float | None = None
    ) -> None:
        self._steps = written
        self._decay = decay
        rooms = _rooms(form, [piece for shard in shards for piece in shard])
        self._cuts = [[_Cut(form, piece, *rooms[piece]) for piece in shard] for shard in shards]

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
        for cut in self._cuts[shard]:
            gradients = [cut.of_gradient(part) for part in parts]
            gradient = mean_of(gradients, len(gradients), cut.mean) if len(gradients) > 1 else gradients[0]
            target, own, made = cut.of_slot(new), cut.of_state(before), cut.of_state(after)
            begun = bool(before.started[cut.members[0]])
            self._steps[cut.group](groups[cut.group], cut.of_slot(old), gradient, own, made, target, cut.rooms, begun)
            if self._decay is not None:
                value = made.get(PARAMETER, target)  # the slot may hold what is predicted
                torch.lerp(own[AVERAGE], value, 1 - self._decay, out=made[AVERAGE])
            after.begin(cut.members)
            if cut.flat:
                after.ragged[cut.number] = 0


class _Cut:
    """A piece, and what of slots and of the state's copies is its own: cut once for each of them, for there are few.

    Args:
        form: of the optimizer's state.
        piece: of it.
        rooms, mean: private memory of its size.
    """

    def __init__(self, form: StateForm, piece: Piece, rooms: Rooms, mean: Tensor) -> None:
        ranges = form.layout.ranges
        self.number, self.flat, self.rooms, self.mean = piece.number, form.flat, rooms, mean
        self.members = ranges[piece.number].members if form.flat else (piece.number,)
        self.group = next(span.group for span in ranges if self.members[0] in span.members)
        self._elements = slice(piece.start, piece.stop)
        self._cells = form.cells[self.members[0]]
        self._gradients: dict[Gradients, Tensor] = {}
        self._slots: dict[Slot, Tensor] = {}
        self._states: dict[OptimizerState, dict[str, Tensor]] = {}

    def of_gradient(self, part: Gradients) -> Tensor:
        """Its elements of a gradient slot."""
        found = self._gradients.get(part)
        if found is None:
            found = self._gradients[part] = self._cut(part.flats, part.tensors)
        return found

    def of_slot(self, slot: Slot) -> Tensor:
        """Its elements of a slot."""
        found = self._slots.get(slot)
        if found is None:
            found = self._slots[slot] = self._cut(slot.flats, slot.parameters)
        return found

    def of_state(self, state: OptimizerState) -> dict[str, Tensor]:
        """What has a value per element, cut; what is one number for all, whole: each shard of them stores the same."""
        found = self._states.get(state)
        if found is None:
            values = (state.flats if self.flat else state.tensors)[self.number]
            found = self._states[state] = {
                key: _flat(value)[self._elements] if self._cells[key].like else value for key, value in values.items()
            }
        return found

    def _cut(self, flats: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
        return (flats[self.number] if self.flat else _flat(tensors[self.number]))[self._elements]


def _rooms(form: StateForm, pieces: Sequence[Piece]) -> dict[Piece, tuple[Rooms, Tensor]]:
    """Private memory for a step, and for a mean; the same for all pieces, for one is stepped at a time."""
    kinds = form.layout.ranges if form.flat else form.layout.entries
    sizes = {piece: (piece.stop - piece.start) * kinds[piece.number].dtype.itemsize for piece in pieces}
    memory = torch.empty((ROOMS + 1, aligned(max(sizes.values()))), dtype=torch.uint8)
    rooms = {piece: [row[:size].view(kinds[piece.number].dtype) for row in memory] for piece, size in sizes.items()}
    return {piece: (Rooms(own[:ROOMS], races=False), own[ROOMS]) for piece, own in rooms.items()}


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))
