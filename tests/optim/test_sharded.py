"""The step of one shard."""

from __future__ import annotations

from typing import Any

import torch

from hogwild.optim.kernels import sgd
from hogwild.optim.sharded import ShardedStep
from hogwild.shared.layout import Layout
from hogwild.shared.optimizer_state import StateForm
from hogwild.shared.shards import cut_shards


class Counted(torch.Tensor):
    """A tensor that counts how often something is cut from it."""

    cuts = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.cuts += 1
        return super().__getitem__(place)


def test_what_a_shard_steps_is_cut_once_for_each_slot():
    numel = 100
    layout = Layout.of([("p", torch.empty(numel))], [0])
    form = StateForm(layout, True, ({},))
    numel = layout.ranges[0].numel
    slots = [SimpleSlot(torch.randn(numel).as_subclass(Counted)) for _ in range(3)]
    states = [SimpleState() for _ in range(2)]
    step = ShardedStep(form, cut_shards(form, 40), [sgd])
    options = [{"lr": 0.1, "momentum": 0, "weight_decay": 0}]
    Counted.cuts = 0
    for _ in range(5):
        for shard in range(3):
            step.advance(shard, options, [slots[2]], slots[0], slots[1], *states)  # type: ignore[list-item, arg-type]
    assert Counted.cuts == 3 * 3
    expected = torch.add(slots[0].flats[0], slots[2].flats[0], alpha=-0.1)
    assert torch.equal(slots[1].flats[0], expected)
    assert states[1].started == [1]


class SimpleSlot:
    """A slot, or a gradient slot."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.flats = [flat]
        self.tensors = self.parameters = [flat]


class SimpleState:
    """A copy of the state of an optimizer that keeps none."""

    def __init__(self) -> None:
        self.started, self.ragged = [0], [0]
        self.flats: list[dict[str, torch.Tensor]] = [{}]

    def begin(self, parameters: Any) -> None:
        for i in parameters:
            self.started[i] = 1
