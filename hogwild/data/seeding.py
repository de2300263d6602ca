"""(seed, batch) → random generators, and those that a whole process shares: lent, put back, and drawn from."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from hogwild.data.generators import GeneratorWatch, torch_state

T = TypeVar("T")
_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A 63-bit number that depends on every bit of every part.

    Each part passes through the finalizer of SplitMix64 (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195).
    """
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1


def seed_update(seed: int, update: int) -> None:
    """Seed torch's, numpy's and `random`'s own generators of this process for one update."""
    seed_generators(mix(seed, update))


def seed_generators(number: int) -> None:
    """Seed torch's, numpy's and `random`'s own generators of this process by one number.

    A draw that only some updates make must not depend on what this worker did before.
    """
    torch.default_generator.manual_seed(number)
    seed_others(number)


def seed_others(number: int) -> None:
    """Seed numpy's and `random`'s own generators, as `seed_generators` does."""
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


class _Lending:
    """Who moves this process's generators for a while: one thread at a time, which puts them back.

    The lock is held meanwhile, and only its holder writes here. `begun` and `ended` count, so that others, who read
    without the lock, can tell whether anybody did meanwhile: a count that they missed has moved when they look again.
    `moved` counts those who found them moved, and is another before they are put back.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.begun = self.ended = self.moved = 0
        self.holder: int | None = None

    def forget_others(self) -> None:
        """In a forked process, where no other thread is that could give them back."""
        if self.holder != threading.get_ident():
            self._begin()


_lending = _Lending()
os.register_at_fork(after_in_child=_lending.forget_others)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves this process's generators as they were.

    Other threads that ask for the same wait: two trainings in one program make their trial steps, and evaluate, one
    after the other. An interruption leaves no count too high, for none comes between two statements that call nothing.
    """
    me = threading.get_ident()
    with _lending.lock:
        outer = _lending.holder if _lending.holder == me else None
        if outer is None:
            _lending.ended = _lending.begun
        try:
            _lending.begun += 1
            _lending.holder = me
            draws = DrawDetector()  # before the states: what another thread draws in between is then seen
            states = torch_state(), np.random.get_state(), random.getstate()
            try:
                yield
            finally:
                _lending.moved += bool(draws.drawn())
                torch.set_rng_state(states[0])
                np.random.set_state(states[1])
                random.setstate(states[2])
        finally:
            _lending.ended += 1
            _lending.holder = outer


def loans_of_this_thread() -> int:
    """How many `preserved_generators` this thread is inside."""
    return _lending.begun - _lending.ended if _lending.holder == threading.get_ident() else 0


def times_moved() -> int:
    """How many `preserved_generators` have found that something was drawn or seeded inside, by whatever thread."""
    return _lending.moved


def read_at_rest(read: Callable[[], T], loans: int) -> T | None:
    """What is read of the generators; None where they may have been lent to somebody meanwhile.

    `loans`: so many are not counted, for whoever reads is part of what they were made for.
    """
    begun, ended = _lending.begun, _lending.ended
    value = read()
    return value if begun - ended == loans and (_lending.begun, _lending.ended) == (begun, ended) else None


class DrawDetector:
    """Tells whether code drew from a generator that all threads of the process share."""

    def __init__(self) -> None:
        self._watch = GeneratorWatch()
        self._before = self._watch.look()

    def drawn(self) -> list[str]:
        """The generators that moved since this object was made, by name."""
        return self._watch.moved(self._before, self._watch.look())
