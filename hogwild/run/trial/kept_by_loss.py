"""What threads would share of a loss, and one step shows that they may not: a module that it puts other parameters in,
as `torch.func.functional_call` does; what it, or a hook, keeps of a step to use it in the same; and the levels of
forward-mode differentiation, of which torch has one stack for all threads. And what the model and the loss have in
common, of which each replica has a copy that the loss does not see.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hogwild.data.holders import ATOMS, Budget, holders_of
from hogwild.workers.process.named_by import Naming, called_code, named_by, set_by

LEVELS = "the levels of forward-mode differentiation (torch.func.jvp)"
_OF_ALL = frozenset(vars(nn.Module()))
_OBJECTS = 1000  # that are looked at, at most


_Key = tuple[int, int, Any]


class KeptByLoss:
    """Looks at what a loss and the hooks of a model hold, before a step and after it.

    Args:
        loss: the caller's.
        replica: which each thread has one of.
        copies: of what the model holds, those in the replica, by the id of the model's own.
    """

    def __init__(self, loss: Callable[[nn.Module, Any], Any], replica: nn.Module, copies: Mapping[int, Any]) -> None:
        self._loss, self._replica = loss, replica
        self._swapped = self._dual = False
        self._alive: list[Any] = []  # so that no other object gets the id of one
        self._own = {id(module) for module in replica.modules()}
        self._private = self._own | {id(copy) for key, copy in copies.items() if id(copy) != key}
        self._modules: list[nn.Module] = []
        self._before: dict[_Key, Tensor] = {}
        for one, held in self._reached(self._roots(), self._private):
            self._before.update(_tensors_of(one, held))
            if isinstance(one, nn.Module):
                self._modules.append(one)
        own = (parameter for module in self._modules for parameter in module.parameters(recurse=False))
        self._counts = {id(tensor): tensor._version for tensor in (*self._before.values(), *own)}
        self._common, self._written = list[Any](), set[int]()
        self._named: list[tuple[Naming, Any]] = []  # where functions find it, and the replica's copy
        if copies:
            self._find_in_common(copies)
        self._before_in_common = {key: value for key, value, _ in self._left_in_common()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside is one step."""
        handles = []
        for module in self._modules:
            look = partial(self._look_at, dict(module._parameters))
            handles.append(module.register_forward_pre_hook(look))
        handles += [module.register_forward_pre_hook(self._look) for module in self._replica.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _look_at(self, own: Mapping[str, Any], module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._swapped |= any(module._parameters.get(name) is not value for name, value in own.items())
        self._look(module, args)

    def _look(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        if not torch.compiler.is_compiling():
            self._dual |= getattr(forward_ad, "_current_level", -1) >= 0

    def why_not_shared(self) -> str:
        """After the step, in words, what threads must not share; empty where nothing is seen."""
        if self._dual:  # first, for it is refused whatever there is besides
            return LEVELS
        if self._swapped:
            return "a module beside the model, whose parameters the loss replaces"
        if any(_is_new(value, self._before.get(place)) for place, value in self._held(self._roots())):
            return "a tensor that the loss or a hook keeps of a step"
        return ""

    def stays(self, held: Tensor) -> bool:
        """After the step, whether a tensor was held before it, and has not been written to."""
        return self._counts.get(id(held)) == held._version

    def set_for_all(self) -> list[str]:
        """Globals, and attributes of what is one, that functions of the loss and of the model assign to."""
        roots = [self._loss, *self._replica.modules()]
        reached = (one for one, _ in self._reached(roots, set(), code=True) if isinstance(one, FunctionType))
        return [*dict.fromkeys(name for function in reached for name in set_by(function))]

    def in_common(self) -> str:
        """After the step, the class of what the model and the loss both hold, where the replica has a copy of its own
        and has left a tensor there, which the loss does not see; empty where there is none."""
        left = self._left_in_common()
        new = [(key, copy) for key, value, copy in left if value is not self._before_in_common.get(key)]
        self._written = {key[0] for key, _ in new}
        return next((type(copy).__name__ for _, copy in new), "")

    def named(self) -> list[Naming]:
        """Where functions of the loss find that by name."""
        return [naming for naming, copy in self._named if self._holds(copy)]

    def _holds(self, copy: Any) -> bool:
        """True for a copy that something was left in."""
        return any(id(one) in self._written for one, _ in self._reached([copy], self._own))

    @contextmanager
    def in_its_place(self) -> Iterator[None]:
        """Inside, the functions of the loss find the replica's copies in the place of what the model holds too."""
        before = [(naming, naming.value) for naming, _ in self._named]
        try:
            for naming, copy in self._named:
                naming.put(copy)
            yield
        finally:
            for naming, value in before:
                naming.put(value)

    def _roots(self) -> list[Any]:
        return [self._loss, *(hook for module in self._replica.modules() for hook in _hooks_of(module))]

    def _find_in_common(self, copies: Mapping[int, Any]) -> None:
        """The copies in the replica of what the loss reaches, but for what it reaches by the caller's model alone."""
        models = {key for key, copy in copies.items() if isinstance(copy, nn.Module)}
        for one, _ in self._reached([self._loss], models, code=True):
            if copies.get(id(one), one) is not one:
                self._common.append(copies[id(one)])
            for naming in named_by(one) if isinstance(one, FunctionType) else ():
                held = not isinstance(naming.value, nn.Module | Tensor)
                if held and copies.get(id(naming.value), naming.value) is not naming.value:
                    self._named.append((naming, copies[id(naming.value)]))

    def _left_in_common(self) -> Iterator[tuple[_Key, Tensor, Any]]:
        """The tensors that those copies hold, by where, and of which copy."""
        seen, budget = set[int](), Budget()
        for copy in self._common:
            for one, held in self._reached([copy], self._own, seen, budget):
                yield from ((key, value, copy) for key, value in _tensors_of(one, held))

    def _held(self, roots: Sequence[Any]) -> Iterator[tuple[_Key, Tensor]]:
        """The tensors that are held, by where."""
        for one, held in self._reached(roots, self._private):
            yield from _tensors_of(one, held)

    def _reached(
        self,
        roots: Sequence[Any],
        skipped: Set[int],
        seen: set[int] | None = None,
        budget: Budget | None = None,
        *,
        code: bool = False,
    ) -> Iterator[tuple[Any, list[Mapping[Any, Any]]]]:
        """Each object, and what it holds, but for those of the ids that are skipped, or have been seen; with the `code`
        of what can be called, and what modules hold beside their parameters."""
        seen, budget, found = set[int]() if seen is None else seen, budget or Budget(), deque(roots)
        while found and len(seen) < _OBJECTS:
            one = found.popleft()
            if id(one) in seen or id(one) in skipped or _is_compiled(one):
                continue
            seen.add(id(one))
            self._alive.append(one)
            held: list[Mapping[Any, Any]] = [holder.held() for holder in holders_of(one, budget)]
            if isinstance(one, nn.Module):
                found.extend([*one.children(), *_hooks_of(one)])
            elif isinstance(one, FunctionType):
                held.append({naming.key: naming.value for naming in named_by(one)})
            if code:
                found.extend(called_code(one))
                held.append(_attributes_of(one) if isinstance(one, nn.Module) else {})
            yield one, held
            values = (value for part in held for value in part.values())
            found.extend(value for value in values if not isinstance(value, (*ATOMS, Tensor, np.ndarray)))


def _tensors_of(one: Any, held: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[_Key, Tensor]]:
    for place, values in enumerate(held):
        yield from (((id(one), place, name), value) for name, value in values.items() if isinstance(value, Tensor))


def _attributes_of(module: nn.Module) -> dict[str, Any]:
    """But for those that every module has."""
    return {name: value for name, value in vars(module).items() if name not in _OF_ALL}


def _is_new(value: Tensor, before: Tensor | None) -> bool:
    """True for the result of a computation that was not there before."""
    return value.grad_fn is not None and before is not value


def _is_compiled(one: Any) -> bool:
    """True for a module whose code is not looked into, and is compiled once more where there are hooks."""
    return isinstance(one, torch.jit.ScriptModule) or type(one).__name__ == "OptimizedModule"


def _hooks_of(module: nn.Module) -> list[Any]:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return [hook for hooks in kinds for hook in hooks.values()]
