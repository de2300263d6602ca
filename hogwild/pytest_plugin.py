"""The `determinism` fixture, for the test suites of whoever has hogwild installed.

    def test_my_training(determinism):
        determinism.assert_deterministic(my_training, runs=3)

Nothing is imported, and no setting touched, before a test asks for the fixture. It is safe under pytest-xdist: there
are no fixed names, ports or folders, and the test's torch threads are its share of the cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hogwild.determinism.verdict import Verdict


class Determinism:
    """What the fixture gives: the assertions of `hogwild.testing`, and `hogwild.check`."""

    def assert_deterministic(self, *arguments: Any, **settings: Any) -> Verdict:
        """See `hogwild.testing.assert_deterministic`."""
        __tracebackhide__ = True  # pytest shows the line of the test
        from hogwild.testing import assert_deterministic

        return assert_deterministic(*arguments, **settings)

    def assert_divergence_below(self, *arguments: Any, **settings: Any) -> Verdict:
        """See `hogwild.testing.assert_divergence_below`."""
        __tracebackhide__ = True
        from hogwild.testing import assert_divergence_below

        return assert_divergence_below(*arguments, **settings)

    def check(self, *arguments: Any, **settings: Any) -> Verdict:
        """See `hogwild.check`."""
        from hogwild.determinism.check import check

        return check(*arguments, **settings)


@pytest.fixture
def determinism() -> Iterator[Determinism]:
    """Assert that trainings are deterministic, or diverge less than a limit.

    While the test runs, torch computes with this test process's share of the cores: all of them, divided by the workers
    of pytest-xdist. The number of threads can decide the last bits, so bits are compared within a test, not between.
    """
    import torch

    before = torch.get_num_threads()
    sharing = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(min(before, max(1, (os.cpu_count() or 1) // sharing)))
    yield Determinism()
    torch.set_num_threads(before)
