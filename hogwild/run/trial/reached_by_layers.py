"""Which parameters of the caller's model the layers of a copy of it compute with: a function that a layer holds is not
copied, nor is the model that the function holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

_MOST = 100_000  # objects that are looked at, of what a layer returns


class ReachedByLayers:
    """Watches what the layers of a model return, and finds out what that was computed with."""

    def __init__(self, model: nn.Module) -> None:
        self._returned: list[Tensor | Node] = []
        for module in model.modules():
            module.register_forward_hook(self._after)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._returned += [tensor.grad_fn or tensor for tensor in _tensors_in(output)]

    def among(self, parameters: Mapping[str, nn.Parameter]) -> set[str]:
        """The names of those that something was computed with; its graph may have been freed."""
        names = {id(parameter): name for name, parameter in parameters.items()}
        found, seen, left = set(), set(), self._returned
        while left:
            at = left.pop()
            leaf = at if isinstance(at, Tensor) else getattr(at, "variable", None)  # a graph ends at a leaf
            if id(leaf) in names:
                found.add(names[id(leaf)])
            if isinstance(at, Tensor) or at in seen:
                continue
            seen.add(at)
            left += [node for node, _ in at.next_functions if node is not None]
        return found


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """Those in it, in containers and in attributes, as of a dataclass."""
    left = [output]
    seen: dict[int, Any] = {}
    while left and len(seen) < _MOST:
        at = left.pop()
        if isinstance(at, Tensor):
            yield at
        elif id(at) not in seen and not isinstance(at, type | nn.Module | ModuleType):
            seen[id(at)] = at  # kept, so that no other gets its id
            left += _values_in(at)


def _values_in(output: Any) -> Collection[Any]:
    if isinstance(output, list | tuple):
        return output
    if isinstance(output, Mapping):
        return output.values()
    if is_dataclass(output):
        return [getattr(output, field.name, None) for field in fields(output)]  # which may have slots alone
    return getattr(output, "__dict__", {}).values()
