"""Shared memory as a slot is, for replicas to be pointed at."""

from __future__ import annotations

from torch import Tensor, nn

from hogwild.model.anatomy import Anatomy
from hogwild.model.replica import Binding, replicate
from hogwild.shared.arena import Arena
from hogwild.shared.layout import Block, Layout


class Slot:
    """Shared memory laid out as a slot is, holding a model's values."""

    def __init__(self, model: nn.Module) -> None:
        anatomy = Anatomy.of(model)
        self.trained = list(anatomy.trained.values())
        self._parameters, self._buffers = (Layout.of(list(x.items())) for x in (anatomy.trained, anatomy.buffers))
        self._arena = Arena(self._parameters.nbytes + self._buffers.nbytes)
        self.parameters, self.buffers = self.views()
        for target, value in zip(self.parameters, self.trained, strict=True):
            target.copy_(value.detach())
        for target, buffer in zip(self.buffers, anatomy.buffers.values(), strict=True):
            target.copy_(buffer)

    def views(self) -> tuple[list[Tensor], list[Tensor]]:
        """As each worker makes its own."""
        parameters = self._parameters.views(Block.shared(self._arena, 0))
        return parameters, self._buffers.views(Block.shared(self._arena, self._parameters.nbytes))

    def replica(self, model: nn.Module) -> Binding:
        views, buffers = self.views()
        parameters = [nn.Parameter(view) for view in views]
        substitutes = {id(p): q for p, q in zip(self.trained, parameters, strict=True)}
        binding = Binding(replicate(model, substitutes), parameters, self._buffers)
        binding.point_at(views, buffers)
        return binding
