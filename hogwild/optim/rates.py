"""Number of the update → learning rates: by a function that gives a factor, or a scheduler of torch as a table.

A scheduler is made and stepped once, before the run, on an optimizer that has the caller's groups and steps nothing. So
no worker needs its state, and a rate depends on the number of the update alone.
"""

from __future__ import annotations

import inspect
import math
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hogwild.errors import ArgumentError, a_type, called_by, one_line

_OWN = ("params", "param_names", "lr")  # of a group, and no options that a scheduler must leave alone


@dataclass(frozen=True)
class SchedulerFactory:
    """A function that makes a scheduler for an optimizer; made by `scheduler`."""

    make: Callable[[Optimizer], LRScheduler]


LRSchedule = Callable[[int], float] | Callable[[Optimizer], LRScheduler] | SchedulerFactory
"""What a user may give as `lr_schedule`."""


def scheduler(make: Callable[[Optimizer], LRScheduler]) -> SchedulerFactory:
    """Mark a function of an optimizer that returns a scheduler of torch, to be given as `lr_schedule`.

    A class of torch's, or a `functools.partial` of one, needs no mark; one made of several does:

        def warm_up(optimizer):
            first = LinearLR(optimizer, 0.1, total_iters=10)
            return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, 90)], [10])

        hogwild.train(…, lr_schedule=hogwild.scheduler(warm_up))
    """
    return SchedulerFactory(make)


def schedule_of(given: Any) -> Callable[[int], float] | SchedulerFactory | None:
    """What was given as `lr_schedule`; what makes a scheduler is marked, where it was not.

    Raises:
        ArgumentError: it is a scheduler that is made already.
    """
    if isinstance(given, LRScheduler):
        name = type(given).__name__
        raise ArgumentError(
            f"lr_schedule is a {name} of an optimizer of yours, and each run makes its own; pass what makes it, such "
            f"as functools.partial(torch.optim.lr_scheduler.{name}, …)"
        )
    inner = called_by(given)
    makes = inspect.isclass(inner) and issubclass(inner, LRScheduler)
    return SchedulerFactory(given) if makes else cast("Callable[[int], float] | SchedulerFactory | None", given)


class RateTable:
    """The learning rates of a run, float64 of (updates, groups).

    Args:
        name: of the scheduler.
        rates: one row after the other.
        groups: of the optimizer.
    """

    def __init__(self, name: str, rates: array[float], groups: int) -> None:
        self.name = name
        self._rates = rates
        self._groups = groups

    def at(self, update: int) -> list[float]:
        """The rate of each group at that update."""
        return self._rates[update * self._groups : (update + 1) * self._groups].tolist()


class _StandIn(Optimizer):
    """Has the groups of another optimizer, with the same options and no parameters of it; steps nothing."""

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [
            {**{key: value for key, value in group.items() if key not in _OWN}, "lr": _copy(group["lr"])}
            for group in optimizer.param_groups
        ]
        super().__init__([{**group, "params": [torch.zeros(1)]} for group in groups], dict(optimizer.defaults))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


def _copy(rate: Any) -> Any:
    """A learning rate that a scheduler may write to, and computes with as it would with this one."""
    return rate.detach().clone() if isinstance(rate, Tensor) else float(rate)


def as_given(rate: Any, given: Any) -> Any:
    """A learning rate as torch's schedulers set it: one that was given as a tensor stays one of its dtype."""
    return torch.full_like(given, float(rate)) if isinstance(given, Tensor) else rate


def tabulated(factory: SchedulerFactory, optimizer: Optimizer, updates: int) -> RateTable:
    """The rates of so many updates: those of update u are what the scheduler has set after u steps.

    Raises:
        ArgumentError: no scheduler is made, it raises, gives no finite rate, changes another option than the rate, or
            looks at the loss.
    """
    stand_in = _StandIn(optimizer)
    options = [dict(group) for group in stand_in.param_groups]
    rates, name = array("d"), ""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.optim\.lr_scheduler")  # of what torch's own call
            made = _made(factory, stand_in)
            name = type(made).__name__
            for update in range(updates):
                if update:
                    stand_in.step()
                    made.step()
                rates.extend(_rates_of(stand_in, options, name, update))
    except ArgumentError:
        raise
    except Exception as error:
        at = f" at update {len(rates) // len(options)} of {updates}"
        raise ArgumentError(
            f"lr_schedule, {name}, raised {type(error).__name__}{at}: {one_line(error)}; it is stepped once an update"
        ) from error
    return RateTable(name, rates, len(options))


def _made(factory: SchedulerFactory, optimizer: Optimizer) -> LRScheduler:
    """The scheduler, of a kind that can be tabulated."""
    try:
        made: Any = factory.make(optimizer)
    except Exception as error:
        given = "what its class needs beside the optimizer is given by functools.partial, as in"
        way_out = f"{given} partial(StepLR, step_size=100)"
        if "cycle_momentum" in str(error):
            way_out = f"{given} partial(OneCycleLR, max_lr=0.1, total_steps=100, cycle_momentum=False)"
        raise ArgumentError(
            f"lr_schedule makes no scheduler: {type(error).__name__}: {one_line(error)}; {way_out}"
        ) from error
    if isinstance(made, ReduceLROnPlateau):
        raise ArgumentError(
            "lr_schedule makes a ReduceLROnPlateau, which looks at how the run goes; a rate must depend on the number "
            "of the update alone, as that of CosineAnnealingLR does"
        )
    if not isinstance(made, LRScheduler):
        raise ArgumentError(
            f"lr_schedule made {a_type(made)}; hogwild.scheduler takes a function of an optimizer that "
            f"returns a torch.optim.lr_scheduler.LRScheduler"
        )
    return made


def _rates_of(optimizer: Optimizer, options: Sequence[Mapping[str, Any]], name: str, update: int) -> list[float]:
    """The rates that stand in the groups, whose other options must be what they were."""
    rates = []
    for group, before in zip(optimizer.param_groups, options, strict=True):
        for key, value in before.items():
            if key not in _OWN and group[key] is not value and group[key] != value:
                cure = "; set cycle_momentum=False" if name in ("OneCycleLR", "CyclicLR") else ""
                raise ArgumentError(
                    f"lr_schedule, {name}, changes {key} from {value} to {group[key]}, and only lr can change{cure}"
                )
        rates.append(float(group["lr"]))
        if not math.isfinite(rates[-1]):
            raise ArgumentError(f"lr_schedule, {name}, sets lr {rates[-1]} at update {update}; it must be finite")
    return rates


def factor_of(schedule: Callable[[int], float], update: int) -> float:
    """The factor on learning rates at that update; of a tensor of one element one without dimensions.

    Raises:
        ArgumentError: the schedule raised, or returned no number; it would again, so no worker tries.
    """
    try:
        factor: Any = schedule(update)
    except Exception as error:
        raise ArgumentError(
            f"lr_schedule raised {type(error).__name__} for update {update}: {one_line(error)} (a function of an "
            f"optimizer that returns a scheduler is marked by hogwild.scheduler)"
        ) from error
    try:
        number = float(factor)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(
            f"lr_schedule returned {factor!r} for update {update}; it must return a factor on the learning rate, such "
            f"as 1.0"
        )
    return cast("float", factor.reshape(()) if isinstance(factor, Tensor) else factor)
