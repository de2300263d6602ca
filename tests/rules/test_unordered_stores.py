"""Where the processor may reorder stores, versions and gradients are published and seen under the ticket lock."""

from __future__ import annotations

import problems
import pytest
from traits import NAMES, SAME_BITS

from hogwild.shared import words


@pytest.mark.parametrize("update", NAMES)
def test_every_rule_trains_with_the_lock_in_place_of_ordered_stores(update, monkeypatch):
    settings = {"update": update, "kind": "threads", "evaluate": problems.accuracy, "evaluate_every": 5, "audit": True}
    plain = problems.train(problems.conv_bn(), **settings)
    monkeypatch.setattr(words, "_ORDERED_STORES", False)
    locked = problems.train(problems.conv_bn(), **settings)
    assert locked.updates == plain.updates == 40
    if update in SAME_BITS:
        assert locked.digest == plain.digest
