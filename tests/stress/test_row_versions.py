"""The protocol of rows by version, in every interleaving; and each way to get it wrong, found.

HOGWILD_EXPLORE=1 pytest tests/stress -k row_versions     a ticket more where τ is 2
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from explorer import explore
from row_versions import RowVersions

MORE = bool(os.environ.get("HOGWILD_EXPLORE"))  # tickets, so that others read while a log is used again, and one dies
SIZES: dict[str, dict[str, Any]] = {
    "serial": {"workers": 1, "total": 3, "staleness": 0, "kills": 2},
    "τ = 1": {"workers": 2, "total": 4, "staleness": 1, "kills": 2},
    "τ = 2": {"workers": 3, "total": 4 + MORE, "staleness": 2, "kills": 1},
    "τ = 2, a log used again": {"workers": 3, "total": 5, "staleness": 2, "kills": 0},
    "more workers than τ + 1": {"workers": 3, "total": 4, "staleness": 1, "kills": 1},
    "first come": {"workers": 2, "total": 4, "staleness": 1, "kills": 2, "first_come": True},
    "by row": {"workers": 2, "total": 4, "staleness": 1, "kills": 2, "by_row": True},
    "by row, τ = 2": {"workers": 3, "total": 4 + MORE, "staleness": 2, "kills": 1, "by_row": True},
    "by row, τ = 2, a log used again": {"workers": 3, "total": 5, "staleness": 2, "kills": 0, "by_row": True},
    "by row, not finite": {"workers": 2, "total": 4, "staleness": 1, "kills": 2, "by_row": True, "spoilt": (0, 2, 3)},
    "first come, one log": {"workers": 3, "total": 3, "staleness": 0, "kills": 0, "first_come": True},
    "first come, three": {"workers": 3, "total": 4, "staleness": 1, "kills": 0, "first_come": True},
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_every_row_is_read_at_its_version(size: dict[str, Any]) -> None:
    found = explore(RowVersions(**size).protocol())
    assert found.wrong is None, str(found)
    assert found.ends


@pytest.mark.parametrize(
    ("fault", "size"),
    [
        ("few logs", "τ = 1"),
        ("few logs", "τ = 2"),
        ("word first", "τ = 1"),
        ("look first", "τ = 1"),
        ("look first", "first come"),
        ("value first", "τ = 1"),
        ("name first", "τ = 1"),
        ("no restore", "τ = 1"),
        ("no restore", "first come"),
        ("no wait", "first come"),
        ("no wait", "first come, one log"),
        ("pinned", "first come, one log"),
        ("base now", "τ = 1"),
        ("base now", "τ = 2"),
        ("few logs", "by row"),
        ("value first", "by row"),
        ("no restore", "by row"),
        ("base now", "by row"),
        ("no restore", "by row, not finite"),
        ("left as it is", "by row, not finite"),
    ],
)
def test_a_fault_is_found(fault: str, size: str) -> None:
    found = explore(RowVersions(**SIZES[size], faults=[fault]).protocol())
    assert found.wrong is not None
