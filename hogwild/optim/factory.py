"""The caller's optimizer: made by a function of the named parameters, checked, and made again over others."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as optimizer_module

from hogwild.errors import ArgumentError, a_type, one_line, some_of, warn_caller
from hogwild.optim.several import Several, classes_of, kind_of, optimizers_in

Named = list[tuple[str, nn.Parameter]]
Factory = Callable[[Named], Optimizer | Sequence[Optimizer]]
_MARK, _MARKED = "__dynamo_disable", ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # attributes of an optimizer


def make_optimizer(factory: Factory, named: Named) -> Optimizer:
    """Call the factory and check what it made.

    Raises:
        ArgumentError: no optimizer, one that ignores its argument, or one that needs a closure; or several that share a
            parameter.
    """
    if not callable(factory):
        raise ArgumentError(
            f"optimizer is {a_type(factory)}, and the run makes its own; pass a function of the named "
            f"parameters, such as functools.partial(torch.optim.SGD, lr=0.1), or one that returns a list of optimizers"
        )
    try:
        optimizer = made_by(factory, named)
    except ArgumentError:
        raise
    except Exception as error:
        called = " (it is called with list(model.named_parameters()))" if isinstance(error, TypeError) else ""
        if "only supports 2D parameters" in str(error):
            called = " (a list of optimizers may have another one for the rest, as [Muon(matrices), AdamW(others)])"
        raise ArgumentError(
            f"the optimizer factory raised {type(error).__name__}: {one_line(error)}{called}"
        ) from error
    for part in optimizers_in(optimizer):
        _refuse_unusable(part, {id(parameter) for _, parameter in named})
    if isinstance(optimizer, Several):
        _look_at_shares(optimizer, named)
    return optimizer


def _refuse_unusable(optimizer: Any, given: Collection[int]) -> None:
    """Refuse what is no optimizer, or none that workers can step; `given` are the ids of the parameters it may hold."""
    if not isinstance(optimizer, Optimizer):
        members = optimizer if isinstance(optimizer, list | tuple) else ()
        wrong = [a_type(one) for one in members if not isinstance(one, Optimizer)]
        inside = f" with {wrong[0]} in it" if wrong else ""
        raise ArgumentError(
            f"optimizer returned {a_type(optimizer)}{inside}; it must return a torch.optim.Optimizer, "
            f"as functools.partial(torch.optim.SGD, lr=0.1) does, or a list of them"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ArgumentError(f"{type(optimizer).__name__} needs a closure, which no worker can call; use SGD or Adam")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ArgumentError(
            f"{type(optimizer).__name__} is given differentiable=True, which no update here outlives; leave it out"
        )
    chosen = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not chosen:
        raise ArgumentError(f"{type(optimizer).__name__} holds no parameters; give it some, or leave it out")
    if any(id(parameter) not in given for parameter in chosen):
        raise ArgumentError(
            f"the optimizer factory ignored its argument: {type(optimizer).__name__} holds parameters it was not "
            f"given; write lambda named: torch.optim.SGD(named, lr=0.1)"
        )


def _look_at_shares(several: Several, named: Named) -> None:
    """Refuse parameters that several optimizers would step one after the other; warn of those that none does."""
    held = Counter(key for part in several.parts for key in group_of(part))
    if twice := [name for name, parameter in named if held[id(parameter)] > 1]:
        raise ArgumentError(f"more than one of {kind_of(several)} holds {some_of(twice)}; let one of them step it")
    if left := [name for name, parameter in named if parameter.requires_grad and not held[id(parameter)]]:
        warn_caller(f"not trained, for none of {kind_of(several)} holds it: {some_of(left)}")


def made_by(factory: Factory, named: Named) -> Optimizer:
    """What the factory makes, several optimizers as one; torch's compiler is not imported for it."""
    with _compiler_left_out():
        made: Any = factory(named)
    several = isinstance(made, list | tuple) and made and all(isinstance(one, Optimizer) for one in made)
    one: Optimizer = Several(made) if several and len(made) > 1 else made[0] if several else made
    return one


@contextmanager
def _compiler_left_out() -> Iterator[None]:
    """Inside, an optimizer of torch is made without importing torch's compiler, which takes longer than torch itself.

    Some methods of `Optimizer` import it when they are first called, to mark themselves as nothing to be compiled; here
    they are told that they are what that would give. Where the compiler is there already, nothing is done.
    """
    _marks.enter()
    try:
        yield
    finally:
        _marks.leave()


class _Marks:
    """The marks on methods of `Optimizer`, which all threads share: there while any thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._marked: list[Any] = []

    def enter(self) -> None:
        """Mark them, unless another thread has."""
        with self._lock:
            self._inside += 1
            if self._inside == 1 and "torch._dynamo" not in sys.modules:
                methods = [getattr(getattr(Optimizer, name), "__wrapped__", None) for name in _MARKED]
                self._marked = [method for method in methods if method is not None and not hasattr(method, _MARK)]
                for method in self._marked:
                    setattr(method, _MARK, method)

    def leave(self) -> None:
        """Take the marks back, unless another thread needs them."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for method in self._marked:
                    delattr(method, _MARK)
                self._marked = []


_marks = _Marks()


def try_step(optimizer: Optimizer) -> None:
    """One step without grad mode, as a worker makes it; where nothing else happens in a step of torch's own, without
    importing its compiler."""
    with torch.no_grad():
        for part in optimizers_in(optimizer):
            if is_plain(part):
                inspect.unwrap(type(part).step)(part)
            else:
                part.step()


def is_torchs(optimizer: Optimizer) -> bool:
    """True for one of torch's own, and for none derived from it elsewhere."""
    return all(type(part).__module__.startswith("torch.optim.") for part in optimizers_in(optimizer))


def is_plain(optimizer: Optimizer) -> bool:
    """True for one of torch's own in whose steps nothing else happens."""
    return is_torchs(optimizer) and not is_watched(optimizer)


def is_watched(optimizer: Optimizer) -> bool:
    """True where something else than its own step happens in a step, to the tensors that it was given."""
    return any(map(_part_is_watched, optimizers_in(optimizer)))


def _part_is_watched(optimizer: Optimizer) -> bool:
    step: Any = optimizer.step
    if getattr(getattr(step, "__code__", None), "co_filename", None) == lr_scheduler.__file__:
        step = step.__wrapped__  # a scheduler only counts its calls
    own = getattr(step, "__func__", None) is type(optimizer).step
    everywhere = optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks
    return has_hooks(optimizer) or any(everywhere) or not own


def has_hooks(optimizer: Optimizer) -> bool:
    """True where something of the user's was registered to be called in its steps."""
    return any(getattr(part, hooks) for part in optimizers_in(optimizer) for hooks in _STEP_HOOKS)


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """id of each parameter → number of its parameter group."""
    return {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}


def refuse_other_groups(
    optimizer: Optimizer, parameters: Sequence[Tensor], numbers: Sequence[int], classes: Sequence[str]
) -> None:
    """Refuse a worker's optimizer that has these parameters in other groups than those of these numbers, or groups of
    other classes.

    Raises:
        ArgumentError: it has; the factory divides them otherwise when it is called again.
    """
    groups = group_of(optimizer)
    same = [groups.get(id(parameter)) for parameter in parameters] == list(numbers)
    if not same or classes_of(optimizer) != tuple(classes):
        raise ArgumentError(
            "the optimizer factory puts parameters into other groups, or gives them to another optimizer of a list, "
            "when it is called again, as each worker does; divide them by name or by shape"
        )


def with_parameters(optimizer: Optimizer, groups: Sequence[Sequence[Tensor]]) -> Optimizer:
    """An optimizer of the same kind and options over other parameters, without state and hooks."""
    if isinstance(optimizer, Several):
        rest = iter(groups)
        return Several([with_parameters(part, [next(rest) for _ in part.param_groups]) for part in optimizer.parts])
    clone: Optimizer = object.__new__(type(optimizer))
    vars(clone).update({name: value for name, value in vars(optimizer).items() if name != "step"})  # bound to the other
    for name in _STEP_HOOKS:
        setattr(clone, name, OrderedDict())
    clone.param_groups = [
        {**{key: value for key, value in group.items() if key != "param_names"}, "params": list(parameters)}
        for group, parameters in zip(optimizer.param_groups, groups, strict=True)
    ]
    clone.state = defaultdict(dict)
    return clone
