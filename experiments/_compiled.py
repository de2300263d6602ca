"""Modules that numba compiles, imported where they are needed: who does not train embeddings does not need numba."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from hogwild.errors import ArgumentError


@cache
def compiled(module: str) -> ModuleType:
    """A module of this folder whose functions numba compiles.

    Raises:
        ArgumentError: numba is not installed.
    """
    try:
        return import_module(f".{module}", __package__)
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise ArgumentError("numba, which compiles it, is not installed; pip install 'hogwild[embeddings]'") from error
