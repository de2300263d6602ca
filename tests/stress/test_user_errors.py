"""What a user's own code raises in a worker reaches the caller: its own type, worker, update and traceback."""

from __future__ import annotations

import pytest
from faults import NONFINITE, RAISES, Case, tried

from hogwild.testing import Hook

pytestmark = pytest.mark.stress


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("rule", ["hogwild", "ordered"])
@pytest.mark.parametrize("fault", [*RAISES, *(fault for fault in NONFINITE if "raise" in fault)])
def test_an_error_of_the_users_own(fault, rule, kind):
    case = Case(fault, rule, kind, 2, "conv_bn", "momentum", "replace", ticket=7, hook=Hook.CLAIMED, seed=1)
    assert tried(case).wrong == ""
