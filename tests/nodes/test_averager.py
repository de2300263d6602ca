"""The averager by itself: what it tells of a machine that it has lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hogwild.nodes import averager as module
from hogwild.nodes.averager import Averager
from hogwild.nodes.peer import Lost
from hogwild.shared.words import Word


class Counts(dict[int, int]):
    """The words that it looks at; `commits` are counted by rules in place alone."""

    def commits(self) -> int:
        return self.get(-1, 0)


@pytest.mark.parametrize("counted", [True, False])
def test_it_tells_where_the_others_were_when_a_machine_was_lost(monkeypatch, counted):
    """And not where they are once the last words of that machine can have come."""
    monkeypatch.setattr(module, "_CLOSING", 0.0)
    told: list[Lost] = []
    averager: Any = object.__new__(Averager)
    averager._closed, averager._arrived, averager._per_update, averager._lost = [], {}, 1, told.append
    averager._control = Counts({Word.PROPOSED: 10, Word.AVERAGED: 10, Word.TOTAL: 100, **({-1: 13} if counted else {})})
    gone = SimpleNamespace(node=1, parted=False, done=False, head=10, part=lambda: None)
    averager._peers = {1: gone}

    averager._lose(gone, "its connection has closed")
    averager._control |= {Word.PROPOSED: 60, Word.AVERAGED: 60, -1: 67}
    averager._tell_lost()
    assert told == [Lost(1, "its connection has closed", 13 if counted else 10)]
