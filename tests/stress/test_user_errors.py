"""What a user's own code raises in a worker reaches the caller: its own type, worker, update and traceback."""

from __future__ import annotations

import pytest
from faults import NONFINITE, RAISES, Case, tried
from traits import KINDS, ONE_OF_EACH

from hogwild.testing import Hook

pytestmark = pytest.mark.stress


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ONE_OF_EACH)
@pytest.mark.parametrize("fault", [*RAISES, *(fault for fault in NONFINITE if "raise" in fault)])
def test_an_error_of_the_users_own(fault, rule, kind):
    case = Case(fault, rule, kind, 2, "conv_bn", "momentum", "replace", ticket=7, hook=Hook.CLAIMED, seed=1)
    assert tried(case).wrong == ""
