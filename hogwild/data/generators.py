"""Looks at the three random generators that all code of a process shares, cheaply enough for every update.

The public ways to read them build thousands of objects (numpy's and Python's, 20 µs each) or copy 5 KB out of the
caches of whoever trains (torch's, 2 µs by itself and up to 9 in a training). Each is a Mersenne Twister that keeps its
state in one piece of memory, of which a few bytes are compared here as they lie there (0.1 µs): the place in it, which
every draw moves, and the first words, which are others where the place has come round. Where that memory is not what
the public way says, as in another implementation of Python or of torch, the public way is used.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NAMES = "torch's default generator", "numpy's global generator", "Python's random module"
_WORDS = 624  # of the Mersenne Twister, 32 bits each; beside them one more, the place in them
_BYTES = 4 * (_WORDS + 1)
_FIRST = 8  # words that are looked at: they are what they were before by chance once in 2 to the 256
_TORCH_STATE = 5056  # bytes of the state of torch's as it is given out
_TORCH_PLACE = struct.Struct("=Qi?3xI")  # in memory it is so before the words: seed, words left, seeded, place
_TORCH_GIVEN = struct.Struct("=QiiQ")  # the same as it is given out, where each word has 8 bytes
_TORCH_NORMALS = 5040, 5052  # where that says whether a normal number was drawn and not yet given out
_TORCH_HEAD = 256  # bytes of torch's generator in which its words begin

_random: Any = np.random

Look = tuple[object, object, object]


class GeneratorWatch:
    """Tells which of the shared generators moved between two looks."""

    def __init__(self) -> None:
        self._numpy = _random.get_bit_generator()
        self._look_at_torch = _torch_memory() or _torch_state
        self._look_at_numpy = _numpy_memory() or _numpy_state
        self._look_at_python = _python_memory() or random.getstate

    def look(self) -> Look:
        """How the generators stand."""
        return (self._look_at_torch(), *self.look_at_others())

    def look_at_others(self) -> tuple[object, object]:
        """How numpy's and Python's stand."""
        own = _random.get_bit_generator() is self._numpy
        return self._look_at_numpy() if own else _numpy_state(), self._look_at_python()

    @staticmethod
    def moved(before: Look, now: Look) -> list[str]:
        """The generators that stand elsewhere, by name."""
        return [name for name, a, b in zip(_NAMES, before, now, strict=True) if a != b]


def torch_state() -> Tensor:
    """`torch.get_rng_state()`, which cannot wait for ever beside a thread that seeds or sets the generator.

    torch holds a generator's mutex while it makes the tensor that it gives back, where the garbage collector of Python
    3.11 may hand the GIL to another thread; one that asks for that mutex waits for it with the GIL, and neither goes
    on. Here that tensor is made of a copy which nobody else has.
    """
    return torch.default_generator.clone_state().get_state()


def _torch_state() -> bytes:
    return torch_state().numpy().tobytes()


def _torch_memory() -> Callable[[], Any] | None:
    """A look at torch's generator by its memory; None where that does not say all, as with numpy's."""
    given, address = _torch_state(), getattr(torch.default_generator, "_cdata", None)
    if address is None or len(given) != _TORCH_STATE or any(given[place] for place in _TORCH_NORMALS):
        return None
    words = struct.pack(f"={_FIRST}I", *struct.unpack_from(f"={_FIRST}Q", given, _TORCH_GIVEN.size))
    memory = (ctypes.c_char * _TORCH_HEAD).from_address(address).raw
    begin = memory.find(words)
    before = begin - _TORCH_PLACE.size
    if before < 0 or _TORCH_PLACE.unpack_from(memory, before) != _TORCH_GIVEN.unpack_from(given):
        return None
    held = (ctypes.c_char * (4 * (1 + _FIRST))).from_address(address + begin - 4)  # the place, and words
    return lambda: held.raw


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
    if held.raw != expected:
        return None
    first, place = (ctypes.c_char * (4 * _FIRST)).from_buffer(held), ctypes.c_uint32.from_buffer(held, 4 * _WORDS)
    return lambda: (first.raw, place.value)


def _python_memory() -> Callable[[], Any] | None:
    """A look at Python's generator by its memory; None where it does not lie where CPython has it."""
    generator: Any = getattr(random, "_inst", None)
    if not hasattr(generator, "gauss_next") or type(generator).__basicsize__ < object.__basicsize__ + _BYTES:
        return None
    held = (ctypes.c_char * _BYTES).from_address(id(generator) + object.__basicsize__)
    *words, place = generator.getstate()[1]
    if held.raw != np.array([place, *words], dtype=np.uint32).tobytes():
        return None
    first = (ctypes.c_char * (4 * (1 + _FIRST))).from_buffer(held)  # the place comes before the words here
    return lambda: (first.raw, generator.gauss_next)
