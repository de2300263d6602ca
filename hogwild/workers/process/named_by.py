"""What functions of a program name of what lies outside them, and where another program finds it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

_CODE = (FunctionType, BuiltinFunctionType, ModuleType, type)  # of which it does no harm to be looked at
_GLOBAL = {"LOAD_GLOBAL", "STORE_GLOBAL"}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "hogwild"}


def is_importable(function: Any) -> bool:
    """True where another program finds it in its module, by its name, or what was made of it by a decorator."""
    name, within = (getattr(function, key, None) or "" for key in ("__qualname__", "__module__"))
    found = sys.modules.get(within) if within != "__main__" else None
    for part in name.split("."):
        found = getattr(found, part, None)
    while found is not None and found is not function:
        found = getattr(found, "__wrapped__", None)
    return found is not None


def called_code(one: Any) -> list[FunctionType]:
    """What is run where an object of a class of the user's is called."""
    own = type(one)
    found = [getattr(own, name, None) for name in ("__call__", "forward")]
    return [part for part in found if isinstance(part, FunctionType) and not _is_of_a_library(part.__module__)]


@dataclass(frozen=True)
class Naming:
    """Where a function finds something by name: among the globals of a module, or in a cell of a closure.

    is_imported: a worker process has it from an import of the module, and not from the function that it is sent.
    """

    within: dict[str, Any] | CellType
    name: str
    is_imported: bool

    @property
    def value(self) -> Any:
        """What is there."""
        return self.within.cell_contents if isinstance(self.within, CellType) else self.within[self.name]

    def put(self, value: Any) -> None:
        """Have something else there."""
        if isinstance(self.within, CellType):
            self.within.cell_contents = value
        else:
            self.within[self.name] = value

    @property
    def key(self) -> Hashable:
        """Equal for the same place."""
        return id(self.within), self.name

    @property
    def title(self) -> str:
        """`module.name`."""
        return f"{self.within['__name__']}.{self.name}" if isinstance(self.within, dict) else self.name


def named_by(function: FunctionType) -> list[Naming]:
    """The globals that a function of the user's names, or one within it does; what it names of the user's modules among
    them; and what it closes over."""
    if _is_of_a_library(function.__module__):
        return []
    attributes = {name for code in _codes_of(function.__code__) for name in code.co_names}
    named = {name for name in attributes if name in function.__globals__}
    if not all(isinstance(function.__globals__[name], _CODE) for name in named):
        named &= _globals_of(function.__code__)
    own = _among(function.__globals__, named, is_imported=is_importable(function))
    found = {naming.key: naming for naming in (*own, *_cells_of(function))}
    modules = [naming.value for naming in found.values()]
    for module in modules:
        if isinstance(module, ModuleType) and not _is_installed(module):
            inner = [one for one in _among(vars(module), attributes, is_imported=True) if one.key not in found]
            found.update({one.key: one for one in inner})
            modules += [one.value for one in inner]
    return [*found.values()]


def set_by(function: FunctionType) -> list[str]:
    """What a function of the user's, or one within it, assigns to where all of a program find it: globals, and
    attributes of what is a global, as of a class."""
    if _is_of_a_library(function.__module__):
        return []
    found: dict[str, None] = {}
    for code in _codes_of(function.__code__):
        for before, step in pairwise(dis.get_instructions(code)):
            if step.opname == "STORE_GLOBAL":
                found[step.argval] = None
            elif step.opname == "STORE_ATTR" and before.opname == "LOAD_GLOBAL":
                found[f"{before.argval}.{step.argval}"] = None
    return [*found]


@lru_cache(maxsize=1 << 12)
def _globals_of(code: CodeType) -> frozenset[str]:
    """What it reads or writes as globals, and not as attributes, which have the names of others."""
    steps = (step for one in _codes_of(code) for step in dis.get_instructions(one))
    return frozenset(step.argval for step in steps if step.opname in _GLOBAL)


def _codes_of(code: CodeType) -> list[CodeType]:
    """It, and those of the functions within it."""
    found = [code]
    for one in found:
        found += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return found


def _among(within: dict[str, Any], names: set[str], *, is_imported: bool) -> Iterator[Naming]:
    return (Naming(within, name, is_imported) for name in sorted(names) if name in within)


def _cells_of(function: FunctionType) -> Iterator[Naming]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:  # not filled yet
            continue
        yield Naming(cell, name, is_imported=False)


def _is_installed(module: ModuleType) -> bool:
    """True for a library: one of Python's, or one that lies among those that pip has put there."""
    return _is_of_a_library(module.__name__) or "site-packages" in (getattr(module, "__file__", None) or "")


def _is_of_a_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES
