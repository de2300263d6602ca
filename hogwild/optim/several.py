"""Several optimizers of one model, each for parameters of its own, as one: SparseAdam for the tables and Adam for the
rest, or Muon for the matrices and AdamW for the rest.

Invariant: no parameter is held by two of them, so the order of their steps decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer


class Several(Optimizer):
    """Steps its parts one after the other; has the groups of all, in their order. Each part keeps its own state.

    Args:
        parts: at least two.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:  # torch's would wrap the step of this class
        self.parts = tuple(parts)
        self.defaults: dict[str, Any] = {}
        self.param_groups = [group for part in parts for group in part.param_groups]
        self._states = _States(parts)

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """Of each parameter, whoever holds it."""
        return self._states

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Step each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Those of all; torch's would wrap the step of this class."""
        for part in self.parts:
            part.zero_grad(set_to_none)


class _States(MutableMapping[Tensor, Any]):
    """The state of each parameter, where the optimizer that holds it keeps it: its own step may go through all it has.

    Args:
        parts: who hold them.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._holder = {one: part for part in parts for group in part.param_groups for one in group["params"]}

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._holder[parameter].state[parameter]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._holder[parameter].state[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._holder[parameter].state[parameter]

    def __contains__(self, parameter: object) -> bool:  # that of a defaultdict, as below: asking makes no state
        return parameter in self._holder and parameter in self._holder[cast("Tensor", parameter)].state

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for parameter in self._holder if parameter in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        """That of the parameter, if there is one."""
        return self._holder[parameter].state.get(parameter, default) if parameter in self._holder else default

    def pop(self, parameter: Tensor, *default: Any) -> Any:
        """That of the parameter, which is no longer there."""
        return self._holder[parameter].state.pop(parameter, *default)


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
