"""What threads would share of a loss, and one step shows that they may not: a module that it puts other parameters in,
as `torch.func.functional_call` does; what it, or a hook, keeps of a step to use it in the same; and the levels of
forward-mode differentiation, of which torch has one stack for all threads.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hogwild.data.holders import ATOMS, Budget, holders_of

_OBJECTS = 1000  # that are looked at, at most
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "hogwild"}


class KeptByLoss:
    """Looks at what a loss and the hooks of a model hold, before a step and after it.

    Args:
        loss: the caller's.
        replica: which each thread has one of.
    """

    def __init__(self, loss: Callable[[nn.Module, Any], Any], replica: nn.Module) -> None:
        self._loss, self._replica = loss, replica
        self._swapped = self._dual = False
        self._alive: list[Any] = []  # so that no other object gets the id of one
        self._modules: list[nn.Module] = []
        self._before = dict(self._held())

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
        if self._swapped:
            return "a module beside the model, whose parameters the loss replaces"
        if self._dual:
            return "the levels of forward-mode differentiation (torch.func.jvp)"
        for place, value in self._held():
            if isinstance(value, Tensor) and value.grad_fn is not None and self._before.get(place) is not value:
                return "a tensor that the loss or a hook keeps of a step"
        return ""

    def _held(self) -> Iterator[tuple[tuple[int, int, Any], Any]]:
        """What is held, by where. Modules beside the model are noted."""
        own, seen, budget = {id(module) for module in self._replica.modules()}, set[int](), Budget()
        found = deque[Any]([self._loss, *(hook for module in self._replica.modules() for hook in _hooks_of(module))])
        while found and len(seen) < _OBJECTS:
            one = found.popleft()
            if id(one) in seen or id(one) in own or _is_compiled(one):
                continue
            seen.add(id(one))
            self._alive.append(one)
            held = [holder.held() for holder in holders_of(one, budget)]
            if isinstance(one, nn.Module):
                self._modules.append(one)
                found.extend([*one.children(), *_hooks_of(one)])
            elif isinstance(one, FunctionType):
                held.append(_globals_of(one))
            for place, values in enumerate(held):
                for name, value in values.items():
                    yield (id(one), place, name), value
                    if not isinstance(value, (*ATOMS, Tensor, np.ndarray)):
                        found.append(value)


def _is_compiled(one: Any) -> bool:
    """True for a module whose code is not looked into, and is compiled once more where there are hooks."""
    return isinstance(one, torch.jit.ScriptModule) or type(one).__name__ == "OptimizedModule"


def _hooks_of(module: nn.Module) -> list[Any]:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return [hook for hooks in kinds for hook in hooks.values()]


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """Of the function of a program of the user's, and of those within it, the globals that they name."""
    if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
        return {}
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        names.update(code.co_names)
    return {name: function.__globals__[name] for name in names if name in function.__globals__}
