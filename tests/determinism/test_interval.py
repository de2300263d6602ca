"""The interval of a mean, beside SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hogwild.determinism.interval import MeanInterval, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 29, 30, 200])
def test_the_quantile_of_student(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    assert t_quantile(freedom, 0.5) == pytest.approx(stats.t.ppf(0.75, freedom), rel=1e-9)


def test_the_interval_of_a_mean() -> None:
    values = [0.91, 0.93, 0.95, 0.9]
    found = MeanInterval.of(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.mean, found.number) == (pytest.approx(np.mean(values)), 4)
    assert found.half == pytest.approx((high - low) / 2)


def test_one_value_has_no_interval() -> None:
    one, other = MeanInterval.of([1.0]), MeanInterval.of([5.0, 5.0])
    assert (one.mean, one.half, other.half) == (1.0, None, 0.0)
    assert one.overlaps(other) and not other.overlaps(MeanInterval.of([5.1, 5.1]))
