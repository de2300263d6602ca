"""Rules in place: what looks at a version does so in order, whoever is late."""

from __future__ import annotations

import time

import problems
import pytest
from traits import IN_PLACE, KINDS

from hogwild.testing import Hook, planted

EVERY, UPDATES = 8, 48


class LateBefore:
    """The worker that makes every second version that is due is late, so that the other one comes to the next."""

    def __call__(self, hook, seat):
        if hook is Hook.COMMITTING and seat.ticket % (2 * EVERY) == EVERY - 1:
            time.sleep(0.15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", IN_PLACE)
def test_all_evaluations_that_are_due_are_made_and_in_order(update: str, kind: str) -> None:
    with planted(LateBefore()):
        run = problems.train(
            update=update, kind=kind, workers=2, updates=UPDATES, evaluate=problems.accuracy, evaluate_every=EVERY
        )
    assert run.updates == UPDATES and not run.failures
    assert [row["update"] for row in run.evaluations] == [*range(EVERY, UPDATES + 1, EVERY)]
