"""Every interleaving of what machines that die and come back do, those that live, and their messages, explored."""

from __future__ import annotations

import os
import re

import pytest
from coming_back import RETURN_FAULTS, Returning
from explorer import explore
from several import Crowd

pytestmark = pytest.mark.stress
MORTAL = (1, 2)  # with machine 0 the run ends
SMALL = [
    Crowd(2, 3, kills=1, mortal=MORTAL, returns=1),
    Crowd(2, 2, kills=2, mortal=MORTAL, returns=2),
    Crowd(2, 2, kills=1, mortal=MORTAL, returns=1, staleness=0),
]
LARGE = [Crowd(2, 3, kills=2, mortal=MORTAL, returns=2), Crowd(2, 4, kills=1, mortal=MORTAL, returns=1)]
LARGE += [Crowd(2, 3, kills=1, mortal=MORTAL, returns=1, staleness=0)]
LARGE += [Crowd(3, 2, kills=1, mortal=(1,), returns=1)]
SIZES = SMALL + (LARGE if os.environ.get("HOGWILD_EXPLORE") else [])


@pytest.mark.parametrize("crowd", SIZES, ids=str)
def test_every_run_that_machines_come_back_to_comes_to_its_end(crowd):
    found = explore(Returning(crowd))
    print(found)
    assert found.wrong is None, found
    assert found.ends > 0


@pytest.mark.parametrize("fault", RETURN_FAULTS)
def test_a_planted_fault_is_found(fault):
    found = explore(Returning(Crowd(2, 3, kills=1, mortal=MORTAL, returns=1), (fault,)))
    assert found.wrong is not None, f"{fault} is not found in {found.states:,} states"
    assert re.search("nothing can happen any more|the end cannot be reached", found.wrong), found
