"""Several optimizers of one model, each for parameters of its own, as one: SparseAdam for the tables and Adam for the
rest, or Muon for the matrices and AdamW for the rest.

Invariant: no parameter is held by two of them, so the order of their steps decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hogwild.errors import class_name


class Several(Optimizer):
    """Steps its parts one after the other; has the groups of all, in their order. Each part keeps its own state.

    It has what is asked of an optimizer here, and not what else torch's have, such as hooks of its own.

    Args:
        parts: at least two.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:  # torch's would wrap the step of this class
        self.parts = tuple(parts)
        common = set.intersection(*(set(part.defaults) for part in parts))
        self.defaults = {name: value for name, value in parts[0].defaults.items() if name in common}
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.holders = {one: part for part in parts for group in part.param_groups for one in group["params"]}
        self._states = _States(self.holders)

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """Of each parameter, whoever holds it."""
        return self._states

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Step each."""
        for part in self.parts:
            part.step()


class _States(MutableMapping[Tensor, Any]):
    """The state of each parameter, where the optimizer that holds it keeps it: its own step may go through all it has.

    Args:
        holders: who holds which.
    """

    def __init__(self, holders: Mapping[Tensor, Optimizer]) -> None:
        self._holder = holders

    def __getitem__(self, parameter: Tensor) -> Any:
        state = self._holder[parameter].state
        if parameter not in state:  # a defaultdict, which would make one
            raise KeyError(parameter)
        return state[parameter]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._holder[parameter].state[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._holder[parameter].state[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for parameter in self._holder if parameter in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def optimizers_in(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The optimizers that it is made of; it alone, where it is one."""
    return optimizer.parts if isinstance(optimizer, Several) else (optimizer,)


def part_of_group(optimizer: Optimizer) -> list[tuple[Optimizer, int]]:
    """For each group: the part that has it, and its number there."""
    return [(part, number) for part in optimizers_in(optimizer) for number in range(len(part.param_groups))]


def holder_of(optimizer: Optimizer, parameter: Tensor) -> Optimizer:
    """The one that steps this parameter."""
    return optimizer.holders[parameter] if isinstance(optimizer, Several) else optimizer


def classes_of(optimizer: Optimizer) -> tuple[str, ...]:
    """For each group the class that steps it, and the module that this is defined in."""
    return tuple(class_name(part) for part, _ in part_of_group(optimizer))


def recorded_class(optimizer: Optimizer) -> str:
    """Its class, as a record has it; of several optimizers that of each group."""
    classes = classes_of(optimizer)
    return " + ".join(classes) if isinstance(optimizer, Several) else classes[0]


def kind_of(optimizer: Optimizer) -> str:
    """Its class, for messages; of several all, as "SparseAdam and Adam"."""
    *most, last = [type(part).__name__ for part in optimizers_in(optimizer)]
    return f"{', '.join(most)} and {last}" if most else last
