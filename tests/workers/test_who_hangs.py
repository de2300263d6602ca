"""Who is taken to hang: a worker that is seen at one point for too long, as a clock of the test's own tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from clocks import Clock

from hogwild.config import RunConfig
from hogwild.rules import Hogwild
from hogwild.shared.arena import Arena, Space
from hogwild.shared.tickets import Control
from hogwild.shared.words import FOR_A_LOCK, LOOKING, Field
from hogwild.workers import supervisor


def watched(monkeypatch):
    """(the row of a worker that has ticket 7, what lets so many seconds pass and tells who was ended)."""
    clock, ended, space = Clock(), [], Space()
    offset = Control.reserve(space, 1, 1)
    control = Control(Arena(space.nbytes), offset, 1, 1)
    control.prepare(0, 9)
    row = control.row(0)
    monkeypatch.setattr(supervisor, "time", clock)
    team = SimpleNamespace(running=lambda: {0}, start=lambda _: None, stacks=lambda _: "")
    config = RunConfig(updates=9, worker_timeout=0.5)
    watch = supervisor.Supervisor(team, SimpleNamespace(control=control), Hogwild(), config, lambda: None, shows=False)

    def look_after(seconds):
        clock.now += seconds
        watch._end_what_hangs(0.5)
        return ended

    team.end = lambda worker: ended.append(worker) or True
    watch._start(0)
    row[Field.TICKET] = 7
    return row, look_after


@pytest.mark.parametrize("field", [Field.TICKET, Field.COMPUTED, Field.AGAIN])
def test_a_slow_worker_does_not_hang(field, monkeypatch):
    """As long as none of its steps takes longer than it may."""
    row, look_after = watched(monkeypatch)
    for _ in range(20):
        row[field] += 1
        assert [*look_after(0.1), *look_after(0.1), *look_after(0.1), *look_after(0.1)] == []
    for _ in range(5):
        look_after(0.1)
    assert look_after(0.1) == [0]


def test_who_makes_versions_of_what_others_compute_does_not_hang(monkeypatch):
    row, look_after = watched(monkeypatch)
    for version in range(50):
        row[Field.ENDED] = version + 1
        assert look_after(0.1) == []
    for _ in range(5):
        look_after(0.1)
    assert look_after(0.1) == [0]


def test_who_looks_for_what_it_waits_for_does_not_hang(monkeypatch):
    row, look_after = watched(monkeypatch)
    row[Field.WAITING] = LOOKING
    for _ in range(50):
        row[Field.LOOKS] += 1
        assert look_after(0.1) == []
    for _ in range(5):
        look_after(0.1)
    assert look_after(0.1) == [0]


def test_time_in_which_nobody_looked_counts_little(monkeypatch):
    """As after Ctrl-Z, in a frozen container, or beside a long evaluation: the workers may have stood still, too."""
    row, look_after = watched(monkeypatch)
    assert look_after(0.1) == [], "it has just moved"
    assert look_after(1000.0) == [], "nobody looked"
    row[Field.WAITING] = FOR_A_LOCK
    assert look_after(1000.0) == look_after(0.1) == [], "it waits for who has the lock"
    row[Field.WAITING] = 0
    assert look_after(0.1) == look_after(1000.0) == look_after(0.1) == look_after(0.1) == look_after(0.1) == []
    assert look_after(0.1) == [0], "it was seen there for 0.125 + 4 × 0.1 s"
