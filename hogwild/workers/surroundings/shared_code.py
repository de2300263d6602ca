"""Code that all threads name: without the GIL, its reference counts are lines of memory that all of them write.

The interpreter defers the counts of what Python code names; what C looks up it counts: a class when a tensor of it
goes, `__getattr__` and `__call__` when a module is asked for a weight or called, a module's dictionary, `torch.empty`.
With two threads that takes 0.1 to 0.7 µs for each, and a step of a small model a tenth to a fifth. What is immortal is
not counted (PEP 683). The code of torch and of this package lives as long as the program does anyway.

`_Py_SetImmortal` is CPython's own, and private: where there is none, all stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from hogwild.workers.surroundings.interpreter import has_gil

_PACKAGES = ("torch", "hogwild", "builtins")
_KINDS = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    property,
    staticmethod,
    classmethod,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
_lock = threading.Lock()
_done: set[str] = set()  # names of modules


def count_no_more() -> None:
    """Make the code of torch and of this package immortal, where threads run without the GIL; once for each module."""
    if has_gil() or (make_immortal := _setter()) is None:
        return
    with _lock:
        modules = {name: module for name, module in sys.modules.items() if _is_code(name, module)}
        for one in code_of([module for name, module in modules.items() if name not in _done]):
            make_immortal(one)
        _done.update(modules)


def _setter() -> Callable[[Any], None] | None:
    """CPython's function, where it does what its name says."""
    make_immortal = getattr(ctypes.pythonapi, "_Py_SetImmortal", None)
    is_immortal: Callable[[Any], bool] | None = getattr(sys, "_is_immortal", None)
    if make_immortal is None or is_immortal is None:
        return None
    make_immortal.argtypes, make_immortal.restype = [ctypes.py_object], None
    make_immortal(torch.Tensor)
    if not is_immortal(torch.Tensor):
        return None
    return lambda one: None if is_immortal(one) else make_immortal(one)


def _is_code(name: str, module: Any) -> bool:
    return type(module) is types.ModuleType and name.partition(".")[0] in _PACKAGES


def code_of(modules: list[types.ModuleType]) -> Iterator[Any]:
    """The modules, their dictionaries, and the functions, classes and dtypes that these name, with what makes up the
    classes; each once. No data, but for the hooks that torch looks for at each call of a module."""
    seen: set[int] = set()
    left: list[Any] = [value for name, value in vars(torch_module).items() if name.startswith("_global")]
    for module in modules:
        left += [module, vars(module), *_named(vars(module))]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            left += _parts(one)
            yield one


def _parts(one: Any) -> list[Any]:
    """What is looked up together with it."""
    if isinstance(one, type):
        return [*one.__mro__, *_named(vars(one))]
    if isinstance(one, types.BuiltinFunctionType):
        return [one.__self__] if one.__self__ is not None else []
    if isinstance(one, property):
        return [part for part in (one.fget, one.fset) if part is not None]
    return [one.__func__] if isinstance(one, staticmethod | classmethod) else []


def _named(names: Any) -> list[Any]:
    """Those of its values that are code. Their types are asked, for some of torch's objects warn where they are."""
    return [value for value in list(names.values()) if issubclass(type(value), _KINDS)]
