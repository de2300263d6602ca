"""A step that the optimizer itself makes, as torch or its author wrote it, on parameters and state in shared memory.

Before it each parameter is pointed at the version that is being made, and its state at shared memory; what the step
left elsewhere is copied there after it. What cannot be copied is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.errors import ArgumentError, some_of
from hogwild.optim.factory import has_hooks, is_plain
from hogwild.optim.several import holder_of, kind_of, optimizers_in
from hogwild.shared.hashing import equal_bits
from hogwild.shared.optimizer_state import AVERAGE, Cell

_ABSENT = object()
_MOST = int(sys.float_info.max)


def bind_state(
    optimizer: Optimizer,
    parameter: nn.Parameter,
    shared: Mapping[str, Tensor],
    cells: Mapping[str, Cell],
    started: int,
) -> None:
    """Let the optimizer see shared memory as the parameter's state, or no state before the first step.

    Raises:
        ArgumentError: what was a whole number after that step is none any more.
    """
    if not started:
        optimizer.state.pop(parameter, None)
        return
    holder = holder_of(optimizer, parameter)
    optimizer.state[parameter] = {
        key: _as_it_was(holder, key, value, cells[key]) for key, value in shared.items() if key != AVERAGE
    }


def _as_it_was(optimizer: Optimizer, key: str, value: Tensor, cell: Cell) -> Tensor | float:
    """A state as the optimizer kept it: a tensor, or a number of its type."""
    if cell.number is None:
        return value
    number = value.item()
    if cell.number is int and not float(number).is_integer():
        raise ArgumentError(
            f"{kind_of(optimizer)} keeps {number} as {key!r}, and kept an int after its first step, in which "
            f"form workers share it; let it begin as a float"
        )
    return cell.number(number)


def keep_state(optimizer: Optimizer, parameter: nn.Parameter, shared: Mapping[str, Tensor]) -> None:
    """Put what the step left as the parameter's state into shared memory, where it is not there already.

    Raises:
        ArgumentError: it is another state than the one the optimizer showed at its first step.
    """
    state, kind = optimizer.state.get(parameter, {}), kind_of(holder_of(optimizer, parameter))
    late = [key for key, value in state.items() if key not in shared and value is not None]
    if late:
        raise ArgumentError(
            f"{kind} began to keep {late[0]!r} after its first step, and workers share only the "
            f"state that an optimizer has from then on"
        )
    for key, target in shared.items():
        if key == AVERAGE:
            continue
        if key not in state:
            raise ArgumentError(
                f"{kind} no longer keeps {key!r}, as it did after its first step, and workers "
                f"share the state that it had then; let it keep {key!r}, with zeros in it"
            )
        value = state[key]
        if value is target or value is None:
            continue
        if isinstance(value, Tensor):
            if value.shape != target.shape or value.dtype != target.dtype:
                raise ArgumentError(
                    f"{kind} keeps {key!r} as {value.dtype} {list(value.shape)}, and kept it as "
                    f"{target.dtype} {list(target.shape)} after its first step, in which form workers share it"
                )
            target.copy_(value)
        else:
            refuse_rounding(kind, key, value)
            target.fill_(value)


def refuse_rounding(name: str, key: str, value: Any) -> None:
    """Refuse a whole number in the state of an optimizer of that name which would be shared as another.

    Raises:
        ArgumentError: a float64 does not hold it.
    """
    if isinstance(value, int) and (abs(value) > _MOST or float(value) != value):
        raise ArgumentError(
            f"{name} keeps {value} as {key!r}, and workers share numbers as float64, which has no such number; keep it "
            f"as a tensor of int64"
        )


def bring_home(optimizer: Optimizer, parameter: nn.Parameter, view: Tensor) -> None:
    """Copy what the step left of a parameter to where the parameter lies, if the step put it elsewhere (`p.data = …`).

    Raises:
        ArgumentError: it has another shape or dtype there.
    """
    left = parameter.data
    if left.shape != view.shape or left.dtype != view.dtype:
        raise ArgumentError(
            f"{kind_of(holder_of(optimizer, parameter))}, or a hook on its steps, made a parameter of {view.dtype} "
            f"{list(view.shape)} one of {left.dtype} {list(left.shape)}; its shape and dtype must stay"
        )
    if left.data_ptr() != view.data_ptr() or left.stride() != view.stride():
        view.copy_(left)


@contextmanager
def options_kept(optimizer: Optimizer) -> Iterator[None]:
    """Around a step, which may not keep state in parameter groups; a hook may set them, as by the number of the update.

    Raises:
        ArgumentError: the step changed an option.
    """
    looked_at = [part for part in optimizers_in(optimizer) if not has_hooks(part)]
    before = [(part, [{**group} for group in part.param_groups]) for part in looked_at]
    yield
    for part, old, group in [(p, *both) for p, olds in before for both in zip(olds, p.param_groups, strict=True)]:
        pairs = {key: (old.get(key, _ABSENT), group.get(key, _ABSENT)) for key in {**old, **group}}
        if changed := [key for key, (was, value) in pairs.items() if value is not was and value != was]:
            raise ArgumentError(
                f"{kind_of(part)} keeps state in its parameter groups ({some_of(changed)}), which workers cannot share"
            )


class Untrained:
    """Parameters that an optimizer may hold and must leave alone: they are not trained, so all workers share them.

    Torch's own optimizers do; those are looked at that may do anything.

    Args:
        optimizer: of a worker.
        named: those of the replica, by name.
    """

    def __init__(self, optimizer: Optimizer, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        looked_at = [] if is_plain(optimizer) else optimizer.param_groups
        held = {id(parameter) for group in looked_at for parameter in group["params"]}
        self._named = [(name, parameter) for name, parameter in named if id(parameter) in held]
        self._optimizer = kind_of(optimizer)
        self._looks = True

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Around a step. The first is made on copies, which are compared; later ones are asked what they wrote to.

        Raises:
            ArgumentError: the step changed one.
        """
        own = [parameter.data for _, parameter in self._named]
        if self._looks:
            for _, parameter in self._named:
                parameter.data = parameter.data.clone()
        counts = [(parameter._version, parameter.data_ptr()) for _, parameter in self._named]
        yield
        changed = [
            name
            for (name, parameter), value, count in zip(self._named, own, counts, strict=True)
            if (parameter._version, parameter.data_ptr()) != count
            or (self._looks and not equal_bits(parameter.data, value))
        ]
        if self._looks:
            for (_, parameter), value in zip(self._named, own, strict=True):
                parameter.data = value
        self._looks = False
        if changed:
            raise ArgumentError(
                f"{self._optimizer}, or a hook on its steps, changes {some_of(changed)}, which is not trained "
                f"(requires_grad is False), and workers share only what is trained; leave it out of the optimizer, or "
                f"train it"
            )
