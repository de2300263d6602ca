"""Milestones: which versions are shown before one that is due, under a rule in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hogwild.rules import Hogwild
from hogwild.shared.words import Word
from hogwild.workers.milestones import Milestones


class Counted(frozenset):
    """Counts how often it is asked for a member."""

    asked = 0

    def __contains__(self, member):
        self.asked += 1
        return super().__contains__(member)


def milestones(observed, every, traced=frozenset()):
    state = SimpleNamespace(control={Word.OBSERVED: observed}, plan=SimpleNamespace(digest_every=0))
    return Milestones(state, Hogwild(), 0, evaluate_every=every, traced=traced, stops=False, checkpoint=None)


@pytest.mark.parametrize(
    ("observed", "version"), [(0, 4), (0, 5), (0, 20), (4, 20), (5, 20), (6, 20), (19, 20), (20, 20)]
)
@pytest.mark.parametrize("traced", [(), (1, 5, 6, 19, 20, 21)])
@pytest.mark.parametrize("every", [0, 1, 5, 7])
def test_those_that_are_due_and_not_shown_come_first(observed, version, traced, every):
    due = [v for v in range(observed + 1, version) if v in traced or (every and v % every == 0)]
    assert milestones(observed, every, frozenset(traced))._not_shown_before(version) == due


def test_the_versions_between_are_not_looked_at():
    traced = Counted({3, 250_000})
    assert milestones(0, 100_000, traced)._not_shown_before(300_000) == [3, 100_000, 200_000, 250_000]
    assert traced.asked == 0
