"""Nets that leave something for the loss in an object that both have."""

from __future__ import annotations

from typing import Any

import problems
from torch import Tensor, nn

FIXED: dict[str, Any] = {"update": "ordered", "staleness": 1, "compensation": "none", "updates": 6}


class Context:
    """What a forward pass leaves for the loss."""

    def __init__(self) -> None:
        self.told: list[Tensor] = []
        self.last: Tensor | None = None


class Told(nn.Module):
    """A net that leaves how large its hidden values are."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.net, self.context = problems.mlp(), context

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.net[0](x)
        self.leave(hidden.square().mean())
        return self.net[1:](hidden)

    def leave(self, value: Tensor) -> None:
        self.context.last = value


class Extractor:
    """Keeps what a layer returns, by a hook that is a method."""

    def __init__(self, layer: nn.Module) -> None:
        self.features: dict[str, Tensor] = {}
        layer.register_forward_hook(self.keep)

    def keep(self, layer: nn.Module, args: Any, output: Tensor) -> None:
        self.features["hidden"] = output
