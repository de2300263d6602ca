"""A random generator for compiled code."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")
def next_bits(state):  # type: ignore[no-untyped-def]
    """SplitMix64 (Steele, Lea & Flood 2014): (next state, 64 random bits); states are np.uint64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, bits ^ (bits >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def below(bits, limit):  # type: ignore[no-untyped-def]
    """A number from 0 to limit − 1 of the upper 32 of random bits."""
    return int(((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))
