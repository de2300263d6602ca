"""Several optimizers of one model, each for parameters of its own, as one: SparseAdam for the tables and Adam for the
rest, or Muon for the matrices and AdamW for the rest.

Invariant: no parameter is held by two of them, so the order of their steps decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Several(Optimizer):
    """Steps its parts one after the other; has the groups of all, in their order, and one state.

    Args:
        parts: at least two.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:  # torch's would wrap the step of this class
        self.parts = tuple(parts)
        self.defaults: dict[str, Any] = {}
        self.param_groups = [group for part in parts for group in part.param_groups]
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        for part in parts:
            state.update(part.state)
        self.state = state

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """Of each parameter, whoever holds it."""
        return self._state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self._state = state
        for part in self.parts:
            part.state = state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Step each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Those of all; torch's would wrap the step of this class."""
        for part in self.parts:
            part.zero_grad(set_to_none)


def optimizers_in(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The optimizers that it is made of; it alone, where it is one."""
    return optimizer.parts if isinstance(optimizer, Several) else (optimizer,)


def part_of_group(optimizer: Optimizer) -> list[tuple[Optimizer, int]]:
    """For each group: the part that has it, and its number there."""
    return [(part, number) for part in optimizers_in(optimizer) for number in range(len(part.param_groups))]


def kind_of(optimizer: Optimizer) -> str:
    """Its class, for messages; of several all, as "SparseAdam and Adam"."""
    *most, last = [type(part).__name__ for part in optimizers_in(optimizer)]
    return f"{', '.join(most)} and {last}" if most else last
