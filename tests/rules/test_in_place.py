"""Rules in place: what looks at a version does so in order, whoever is late."""

from __future__ import annotations

import time

import problems
import pytest
from traits import IN_PLACE, KINDS

from hogwild.testing import Fault, Hook, PlantedFault, planted

EVERY, UPDATES = 8, 48


class LateBefore:
    """The worker that makes every second version that is due is late, so that the other one comes to the next."""

    def __call__(self, hook, seat):
        if hook is Hook.COMMITTING and seat.ticket % (2 * EVERY) == EVERY - 1:
            time.sleep(0.15)


class Overtaken:
    """That update is applied once the other worker has been handed twice as many, and more evaluations are due."""

    def __init__(self, update: int) -> None:
        self.update = update

    def __call__(self, hook, seat):
        if hook is Hook.COMMITTING and seat.ticket == self.update:
            deadline = time.monotonic() + 20
            while seat.tickets_handed_out < 2 * self.update:
                assert time.monotonic() < deadline, "the other worker waits for this one, and does not race"
                time.sleep(0.001)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", IN_PLACE)
def test_nobody_waits_for_who_is_late(update: str, kind: str) -> None:
    with planted(Overtaken(2 * EVERY - 1)):
        run = problems.train(
            update=update, kind=kind, workers=2, updates=UPDATES, evaluate=problems.accuracy, evaluate_every=EVERY
        )
    assert [row["update"] for row in run.evaluations] == [*range(EVERY, UPDATES + 1, EVERY)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", IN_PLACE)
def test_one_whose_worker_failed_is_made_by_the_next(update: str, kind: str) -> None:
    with planted(PlantedFault(Fault.RAISE, Hook.WRITING, 2 * EVERY - 1)):
        run = problems.train(
            update=update, kind=kind, workers=2, updates=UPDATES, evaluate=problems.accuracy, evaluate_every=EVERY
        )
    assert len(run.failures) == 1 and run.in_doubt == (2 * EVERY - 1,)
    assert [row["update"] for row in run.evaluations] == [*range(EVERY, UPDATES + 1, EVERY)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", IN_PLACE)
def test_all_evaluations_that_are_due_are_made_and_in_order(update: str, kind: str) -> None:
    with planted(LateBefore()):
        run = problems.train(
            update=update, kind=kind, workers=2, updates=UPDATES, evaluate=problems.accuracy, evaluate_every=EVERY
        )
    assert run.updates == UPDATES and not run.failures
    assert [row["update"] for row in run.evaluations] == [*range(EVERY, UPDATES + 1, EVERY)]
