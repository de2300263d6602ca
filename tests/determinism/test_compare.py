"""Which versions are traced, how fast runs drift apart, how far accuracies scatter."""

from __future__ import annotations

import numpy as np
import pytest

from hogwild.determinism.compare import Course, marks, spread


def test_marks_begin_close_together_and_end_with_the_run():
    found = sorted(marks(1000, nbytes=4, runs=5))
    assert found[0] == 1
    assert found[-1] == 1000
    assert len(found) <= 24
    assert sorted(marks(1000, nbytes=1 << 40, runs=5)) == [1, 1000]
    assert marks(1, 4, 5) == {1}


def test_the_slope_of_a_course_is_its_growth_per_update():
    updates = tuple(range(1, 40))
    course = Course(updates, tuple(1e-9 * np.exp(0.25 * u) for u in updates))
    assert course.slope == pytest.approx(0.25)
    assert Course((1, 2), (0.1, 0.2)).slope is None


def test_spread_is_the_unbiased_deviation_with_an_interval():
    values = [0.9, 0.92, 0.95, 0.91]
    mean, deviation, low, high = spread(values)
    assert mean == pytest.approx(np.mean(values))
    assert deviation == pytest.approx(np.std(values, ddof=1))
    assert low < deviation < high
    assert spread([0.5]) == (0.5, 0.0, 0.0, 0.0)
