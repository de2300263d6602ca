"""SIGKILL at any instant: every run completes, every update is applied exactly once, and the bits are the same.

pytest tests/stress -m stress             6 kills a rule that meet a run that is not over
HOGWILD_KILLS=200 pytest tests/stress     as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import os
import random
import time

import problems
import pytest
from killer import Killer
from traits import SAME_BITS, VERSIONED

import hogwild
from hogwild.testing import RandomDelays, planted

pytestmark = pytest.mark.stress

KILLS = int(os.environ.get("HOGWILD_KILLS", "6"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
UPDATES = 150


def train(update: str, workers: int, **arguments) -> hogwild.Run:
    return problems.train(
        problems.conv_bn(),
        update=update,
        workers=workers,
        kind="processes",
        staleness=3,
        micro_batches=3,
        updates=UPDATES,
        optimizer=problems.MOMENTUM,
        **arguments,
    )


@pytest.mark.filterwarnings("ignore:staleness")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("update", VERSIONED)
def test_random_kills(update, request):
    print(f"HOGWILD_SEED={SEED}")
    choices = random.Random(f"{SEED} {update}")
    train(update, workers=1)  # for which the fork server starts
    began = time.monotonic()
    with planted(RandomDelays(seed=SEED, share=0.05)):
        train(update, workers=2)
    longest = time.monotonic() - began
    digests, kills, failures = set(), 0, 0
    attempts = 0
    while failures < KILLS and attempts < 10 * KILLS:
        attempts += 1
        killer = Killer(choices, longest)
        with planted(RandomDelays(seed=choices.randrange(1 << 30), share=0.05)), killer:
            run = train(update, workers=choices.choice([2, 3]))
        kills += killer.killed
        failures += len(run.failures)
        digests.add(run.digest)
        assert run.updates == UPDATES
        assert sorted(run.journal["update"]) == list(range(UPDATES))
        assert run.in_doubt == ()
    print(
        f"{update}: {kills} kills, of which {failures} met a run that was not over; {attempts} runs, "
        f"{len(digests)} digests"
    )
    assert failures >= KILLS, "kills should meet a worker at work"
    if update in SAME_BITS:
        assert digests == {train(update, workers=1).digest}
