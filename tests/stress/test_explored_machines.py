"""Every interleaving of what several machines, their messages and their deaths do, explored; and planted faults.

HOGWILD_EXPLORE=1 pytest tests/stress -k explored     larger sizes
"""

from __future__ import annotations

import os
import re

import pytest
from explorer import explore
from several import FAULTS, Crowd, Together

pytestmark = pytest.mark.stress
SMALL = [
    Crowd(2, 6, kills=0),
    Crowd(2, 4, kills=1),
    Crowd(2, 3, kills=1, staleness=2),
    Crowd(3, 2, kills=1, mortal=(0,)),
    Crowd(2, 4, kills=1, mortal=(1,), decides=2, again=(1, 2)),
    Crowd(2, 4, kills=1, turns=(0, 0, 1)),
]
LARGE = [Crowd(2, 6, kills=1), Crowd(2, 4, kills=1, staleness=2), Crowd(3, 2, kills=1), Crowd(3, 3, kills=1)]
LARGE += [Crowd(2, 6, kills=1, turns=(0, 1, 1)), Crowd(2, 4, kills=1, decides=2, again=(1, 2), turns=(0, 0, 0, 1))]
LARGE += [Crowd(2, 5, kills=1, mortal=(1,), decides=3, again=(1, 2, 3)), Crowd(3, 3, kills=0, decides=2, again=(1, 2))]
SIZES = SMALL + (LARGE if os.environ.get("HOGWILD_EXPLORE") else [])


@pytest.mark.parametrize("crowd", SIZES, ids=str)
def test_every_run_over_several_machines_comes_to_its_end(crowd):
    found = explore(Together(crowd))
    print(found)
    assert found.wrong is None, found
    assert found.ends > 0


PLANTED = {
    "no adoption": (Crowd(2, 3, kills=1), "nothing can happen any more|the end cannot be reached"),
    "owner alone": (Crowd(3, 2, kills=1, mortal=(0,)), "nothing can happen any more|the end cannot be reached"),
    "claims all": (Crowd(2, 4, kills=1), "reads version|lays . over"),
    "late copy": (Crowd(2, 5, kills=1, staleness=0), "lays . over"),
    "no room asked": (Crowd(2, 5, kills=0), "lays . over"),
    "not sent first": (Crowd(2, 3, kills=1, staleness=0), "which it has not sent"),
    "sent to living": (Crowd(2, 3, kills=0), "nothing can happen any more|the end cannot be reached"),
    "waits for other": (Crowd(2, 4, kills=0, decides=1, again=(1,)), "nothing can happen any more|the end cannot be"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    crowd, wrong = PLANTED[fault]
    found = explore(Together(crowd, (fault,)))
    assert found.wrong is not None, f"{fault} is not found in {found.states:,} states"
    assert re.search(wrong, found.wrong), found
