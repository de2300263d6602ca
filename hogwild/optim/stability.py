"""How far may SGD step by gradients that are τ updates old? On a quadratic loss, the answer is exact.

With the curvature λ the gradient is λ w[u − τ], so that w and the velocity follow a linear recurrence with constant
coefficients: (w[u], …, w[u − τ], v) is multiplied by one matrix at each update. Training is stable where no eigenvalue
of that matrix is larger than 1. Without momentum, that is lr λ ≤ 2 sin(π / (4 τ + 2)).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

_PRECISION = 1e-3  # of the answer, relative
_MOST_DELAY = 64  # updates; beyond, the limit falls as 1 / (2 τ + 1), and eigenvalues would take a while


GROWS = 3
"""Times as much as where a run begins, a loss may be curved later; seen of nets without normalisation: 2 to 5."""


class Curvature(NamedTuple):
    """How curved a loss is where a run begins: `largest`, of the eigenvalues of its Hessian, in units of the loss over
    those of the parameters squared, for Adam over those of its steps; and what it `grows` to, times that."""

    largest: float
    grows: int = GROWS


SAFE: Mapping[bool, float] = {True: 0.5, False: 0.9}
"""With momentum, and without: the share of the largest stable step that is left alone, for losses get more curved."""


def is_safe_step(step: float, staleness: int, momentum: float, nesterov: bool = False) -> bool:
    """Whether lr × λ, with the curvature λ where training begins, leaves enough for the curvature to grow."""
    return step <= SAFE[momentum > 0] * largest_stable_step(staleness, momentum, nesterov)


@cache
def largest_stable_step(staleness: int, momentum: float, nesterov: bool = False) -> float:
    """The largest lr × λ with which SGD stays stable on a quadratic loss of the curvature λ.

    Args:
        staleness: τ, in updates.
        momentum: μ of torch's SGD, without dampening; with 1 or more nothing is stable.
        nesterov: as torch has it.
    """
    if momentum >= 1:
        return 0.0
    if staleness > _MOST_DELAY:
        return largest_stable_step(_MOST_DELAY, momentum, nesterov) * (2 * _MOST_DELAY + 1) / (2 * staleness + 1)
    low, high = 0.0, 4.0  # gradient descent with momentum, without delay, is stable up to 2 (1 + μ)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _radius(middle, staleness, momentum, nesterov) <= 1 + 1e-9 else (low, middle)
    return low


def _radius(step: float, staleness: int, momentum: float, nesterov: bool) -> float:
    """The largest modulus among the eigenvalues."""
    size = staleness + 1
    gradient = np.zeros(size + 1)
    gradient[staleness] = 1.0
    velocity = gradient.copy()
    velocity[size] = momentum
    update = np.zeros((size + 1, size + 1))
    update[0] = -step * (gradient + momentum * velocity if nesterov else velocity)
    update[0, 0] += 1
    update[range(1, size), range(size - 1)] = 1
    update[size] = velocity
    return float(np.abs(np.linalg.eigvals(update)).max())
