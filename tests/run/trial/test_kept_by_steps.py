"""What a step keeps, in the loss or by a hook, and threads would share."""

from __future__ import annotations

from typing import Any

import problems
import pytest
from contexts import FIXED, Extractor
from torch import Tensor, nn

import hogwild


class HooksItself(nn.Module):
    """A net whose first forward pass registers a hook, which keeps what a layer returns for all."""

    def __init__(self, kept: dict[str, Tensor]) -> None:
        super().__init__()
        self.net, self.keeps = problems.mlp(), False
        self.keep = lambda layer, args, output: kept.update(last=output)

    def forward(self, x: Tensor) -> Tensor:
        if not self.keeps:
            self.net[0].register_forward_hook(self.keep)
            self.keeps = True
        return self.net(x)


def test_a_hook_of_the_first_forward_pass_is_seen():
    with pytest.warns(UserWarning, match="threads share a tensor that the loss or a hook keeps of a step"):
        problems.train(HooksItself({}), kind="threads", workers=2, updates=2)


class Remembers:
    """A loss that returns what it has kept, and so may return what another thread has."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.last = problems.cross_entropy(model, batch)
        return self.last


@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_threads_that_share_what_a_step_keeps_cannot_have_the_same_bits(update):
    given: dict[str, Any] = {"loss": Remembers(), "kind": "threads", "update": update, "updates": 2}
    told = f"threads share a tensor .* so {update} cannot give the same bits; use kind='processes'"
    with pytest.raises(hogwild.NotReproducible, match=told):
        problems.train(workers=2, **given)
    assert problems.train(workers=1, **given).updates == 2


class Tapped(nn.Module):
    """Holds an extractor, of which each copy of the net has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = problems.mlp()
        self.extractor = Extractor(self.net[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (1 + self.extractor.features.get("hidden", x).mean())


@pytest.mark.filterwarnings("error")
def test_what_each_copy_of_the_model_has_of_its_own_is_not_shared():
    digests = {problems.train(Tapped(), kind="threads", workers=workers, **FIXED).digest for workers in (1, 2)}
    assert len(digests) == 1
