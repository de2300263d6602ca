"""Looks at the three random generators that all code of a process shares, cheaply enough for every update.

The public ways to read numpy's and Python's generators build thousands of objects (20 µs each). Both keep their state
in one piece of memory, which is compared here as it lies there (0.3 µs). Where that memory is not what the public way
says, as in another implementation of Python, the public way is used.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_NAMES = "torch's default generator", "numpy's global generator", "Python's random module"
_WORDS = 624  # of the Mersenne Twister, 32 bits each; beside them one more, the place in them
_BYTES = 4 * (_WORDS + 1)

_random: Any = np.random

Look = tuple[object, object, object]


class GeneratorWatch:
    """Tells which of the shared generators moved between two looks."""

    def __init__(self) -> None:
        self._numpy = _random.get_bit_generator()
        self._look_at_numpy = _numpy_memory() or _numpy_state
        self._look_at_python = _python_memory() or random.getstate

    def look(self) -> Look:
        """How the generators stand."""
        return (torch.get_rng_state().numpy().tobytes(), *self.look_at_others())

    def look_at_others(self) -> tuple[object, object]:
        """How numpy's and Python's stand."""
        own = _random.get_bit_generator() is self._numpy
        return self._look_at_numpy() if own else _numpy_state(), self._look_at_python()

    @staticmethod
    def moved(before: Look, now: Look) -> list[str]:
        """The generators that stand elsewhere, by name."""
        return [name for name, a, b in zip(_NAMES, before, now, strict=True) if a != b]


def _numpy_state() -> Any:
    """The state of numpy's global generator, of whatever kind it is, to be compared."""
    state = np.random.get_state(legacy=False)
    return repr(state), _bytes_in(state)


def _bytes_in(state: Any) -> list[bytes]:
    if isinstance(state, dict):
        return [part for value in state.values() for part in _bytes_in(value)]
    return [state.tobytes()] if isinstance(state, np.ndarray) else []


def _numpy_memory() -> Callable[[], Any] | None:
    """A look at numpy's generator by its memory; None where that does not say all.

    A normal number that was drawn and not yet given out lies elsewhere. Where there is none, the first draw moves the
    generator.
    """
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937" or state["has_gauss"]:
        return None
    address = _random.get_bit_generator().ctypes.state_address
    held = (ctypes.c_char * _BYTES).from_address(address)
    expected = state["state"]["key"].tobytes() + np.uint32(state["state"]["pos"]).tobytes()
    return (lambda: held.raw) if held.raw == expected else None


def _python_memory() -> Callable[[], Any] | None:
    """A look at Python's generator by its memory; None where it does not lie where CPython has it."""
    generator: Any = getattr(random, "_inst", None)
    if not hasattr(generator, "gauss_next") or type(generator).__basicsize__ < object.__basicsize__ + _BYTES:
        return None
    held = (ctypes.c_char * _BYTES).from_address(id(generator) + object.__basicsize__)
    *words, place = generator.getstate()[1]
    expected = np.array([place, *words], dtype=np.uint32).tobytes()
    return (lambda: (held.raw, generator.gauss_next)) if held.raw == expected else None
