"""What exploring the protocols brought to light, in real runs."""

from __future__ import annotations

import json
import time

import numpy as np
import problems
import pytest
from traits import VERSIONED

from hogwild.shared.tickets import Control
from hogwild.shared.words import NOBODY, Field, Word
from hogwild.testing import Fault, Hook, PlantedFault, planted

pytestmark = pytest.mark.stress

HOOKS = [Hook.CLAIMING, Hook.COMMITTING, Hook.PUBLISHING, Hook.PUBLISHED]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("update", VERSIONED)
def test_a_run_whose_every_worker_died_is_not_over(update, hook):
    """Under sync a ticket is done before its version is made: nothing was reissued, and nobody made the version."""
    fault = PlantedFault(Fault.KILL, hook, 9)
    with planted(fault):
        run = problems.train(update=update, kind="processes", workers=1, updates=16, on_worker_failure="continue")
    assert fault.fired and len(run.failures) == 1
    assert run.updates == len(run.journal) == 16


class Dawdle:
    """Stays at a hook for longer than an interrupted run waits."""

    def __call__(self, hook, seat):
        if hook is Hook.PUBLISHING and seat.ticket >= 12:
            time.sleep(30)


@pytest.mark.parametrize("update", VERSIONED)
def test_an_interrupted_run_has_no_row_of_a_version_that_was_never_published(update, tmp_path):
    def interrupt(progress):
        if progress.updates >= 5:
            raise KeyboardInterrupt

    with planted(Dawdle()), pytest.raises(KeyboardInterrupt):
        problems.train(update=update, kind="processes", updates=40, out=tmp_path, progress=interrupt)
    updates = json.loads((tmp_path / "run.json").read_text())["updates"]
    journal = np.load(tmp_path / "journal.npy")
    assert 5 <= updates < 40
    assert journal["version"].tolist() == list(range(1, updates + 1))


class LateChoice:
    """`Control.take_again`, which stays once, until what it was called for is applied, and its slot has what comes
    next."""

    def __init__(self, per_update, waiting):
        self.take_again = Control.take_again
        self.per_update = per_update
        self.waiting = waiting  # updates whose gradients have a slot
        self.stayed = False

    def __call__(self, control, worker, ticket):
        if not self.stayed and control.row(worker)[Field.TICKET] == NOBODY:
            self.stayed = True
            deadline = time.monotonic() + 20
            while control[Word.HEAD] <= ticket // self.per_update + self.waiting:
                assert time.monotonic() < deadline, "nobody else computed it again"
                time.sleep(0.001)
        return self.take_again(control, worker, ticket)


@pytest.mark.parametrize(("update", "per_update", "waiting"), [("ordered", 1, 3), ("sync", 3, 1)])
def test_what_was_applied_meanwhile_is_not_computed_again(update, per_update, waiting, monkeypatch):
    """Its slot says of a later gradient that it was computed twice, and nothing any more of the one that was chosen."""
    late = LateChoice(per_update, waiting)
    monkeypatch.setattr(Control, "take_again", lambda *arguments: late(*arguments))
    settings = {"staleness": waiting - 1, "micro_batches": per_update, "compensation": "none", "worker_timeout": 40.0}
    run = problems.train(update=update, workers=3, kind="threads", updates=20, recheck=1.0, **settings)
    assert late.stayed and run.rechecked == 20 * per_update
