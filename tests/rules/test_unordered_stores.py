"""Where the processor may reorder stores, versions and gradients are published and seen under the ticket lock."""

from __future__ import annotations

import problems
import pytest
import tables
from traits import NAMES, SAME_BITS, VERSIONED

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


@pytest.mark.parametrize("update", VERSIONED)
def test_so_are_rows_of_tables(update, monkeypatch):
    settings = {"optimizer": "adagrad", "update": update, "workers": 3, "staleness": 2, "micro_batches": 3}
    plain = tables.train(tables.made(), **settings)
    monkeypatch.setattr(words, "_ORDERED_STORES", False)
    locked = tables.train(tables.made(), **settings)
    assert locked.updates == plain.updates == tables.UPDATES
    if update in SAME_BITS:
        assert locked.digest == plain.digest
