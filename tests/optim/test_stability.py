"""How far SGD may step by stale gradients, against the recurrence itself."""

from __future__ import annotations

import math
from collections import deque

import pytest

from hogwild.optim.stability import largest_stable_step


def ends_within(step: float, staleness: int, momentum: float, nesterov: bool) -> bool:
    """Whether w of the loss w² / 2 stays bounded over many updates, from 1."""
    w, v, old = 1.0, 0.0, deque([1.0], maxlen=staleness + 1)
    for _ in range(20_000):
        g = old[0]
        v = momentum * v + g
        w -= step * (g + momentum * v if nesterov else v)
        old.append(w)
        if abs(w) > 1e6:
            return False
    return True


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("staleness", [0, 1, 3, 10])
def test_just_below_it_stays_and_just_above_it_leaves(staleness, momentum, nesterov):
    limit = largest_stable_step(staleness, momentum, nesterov)
    assert ends_within(limit * 0.98, staleness, momentum, nesterov)
    assert not ends_within(limit * 1.05, staleness, momentum, nesterov)


@pytest.mark.parametrize("staleness", [0, 1, 2, 7, 31, 64, 100, 1_000])
def test_without_momentum_it_is_known(staleness):
    assert largest_stable_step(staleness, 0.0) == pytest.approx(2 * math.sin(math.pi / (4 * staleness + 2)), rel=0.01)
