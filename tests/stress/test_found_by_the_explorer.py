"""What exploring the protocols brought to light, in real runs."""

from __future__ import annotations

import json
import time

import numpy as np
import problems
import pytest
from traits import VERSIONED

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
