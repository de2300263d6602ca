"""The caller's optimizer: made by a function of the named parameters, checked, and made again over others."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.errors import ArgumentError, one_line

Named = list[tuple[str, nn.Parameter]]
Factory = Callable[[Named], Optimizer]
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # attributes of an optimizer


def make_optimizer(factory: Factory, named: Named) -> Optimizer:
    """Call the factory and check what it made.

    Raises:
        ArgumentError: no optimizer, one that ignores its argument, or one that needs a closure.
    """
    if not callable(factory):
        raise ArgumentError(
            f"optimizer is a {type(factory).__name__}, {str(factory).splitlines()[0]!r}; pass a function of the named "
            f"parameters, such as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    try:
        optimizer = factory(named)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(f"the optimizer factory raised {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            f"optimizer returned a {type(optimizer).__name__}; it must return a torch.optim.Optimizer, "
            f"as functools.partial(torch.optim.SGD, lr=0.1) does"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ArgumentError(f"{type(optimizer).__name__} needs a closure, which no worker can call; use SGD or Adam")
    given = {id(parameter) for _, parameter in named}
    chosen = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not chosen or any(id(parameter) not in given for parameter in chosen):
        raise ArgumentError(
            f"the optimizer factory ignored its argument: {type(optimizer).__name__} holds parameters it was not "
            f"given; write lambda named: torch.optim.SGD(named, lr=0.1)"
        )
    return optimizer


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """id of each parameter → number of its parameter group."""
    return {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}


def with_parameters(optimizer: Optimizer, groups: Sequence[Sequence[Tensor]]) -> Optimizer:
    """An optimizer of the same kind and options over other parameters, without state and hooks."""
    clone: Optimizer = object.__new__(type(optimizer))
    vars(clone).update({name: value for name, value in vars(optimizer).items() if name != "step"})  # bound to the other
    for name in STEP_HOOKS:
        setattr(clone, name, OrderedDict())
    clone.param_groups = [
        {**{key: value for key, value in group.items() if key != "param_names"}, "params": list(parameters)}
        for group, parameters in zip(optimizer.param_groups, groups, strict=True)
    ]
    clone.state = defaultdict(dict)
    return clone
