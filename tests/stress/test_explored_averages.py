"""Every interleaving of workers that stand still while machines average, and of their deaths; and planted faults."""

from __future__ import annotations

import re

import pytest
from averaging import FAULTS, Averaged
from explorer import explore

pytestmark = pytest.mark.stress


@pytest.mark.parametrize(
    ("workers", "updates", "every", "kills"), [(2, 5, 2, 1), (3, 4, 2, 1), (2, 3, 1, 2), (2, 4, 2, 2), (3, 3, 3, 0)]
)
def test_every_run_whose_machines_average_comes_to_its_end(workers, updates, every, kills):
    found = explore(Averaged(workers, updates, every, kills))
    print(found)
    assert found.wrong is None, found
    assert found.ends > 0


PLANTED = {
    "unsettled": "is laid out with updates",
    "no lock": "is written while the model is averaged|are lost|while the averager has the block",
    "at once": "is taken, and it is not there",
    "laid twice": "while the averager has the block",
    "starts early": "was averaged last",
    "no orphans": "nothing can happen any more|the end cannot be reached",
    "ends early": "averaged at",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_gate_is_found(fault):
    found = explore(Averaged(2, 4, 2, 1, (fault,)))
    assert found.wrong is not None, f"{fault} is not found in {found.states:,} states"
    assert re.search(PLANTED[fault], found.wrong), found
