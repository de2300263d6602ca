"""SIGKILL at any instant: every run completes, every update is applied exactly once, and the bits are the same.

pytest tests/stress -m stress             6 kills a rule
HOGWILD_KILLS=200 pytest tests/stress     as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import os
import random
import threading
import time

import problems
import psutil
import pytest

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


def worker_processes() -> list[psutil.Process]:
    """The living workers of this process's runs: grandchildren, by way of the fork server."""
    servers = [
        child for child in psutil.Process().children() if "multiprocessing.forkserver" in " ".join(child.cmdline())
    ]
    return [worker for server in servers for worker in server.children()]


class Killer(threading.Thread):
    """Kills one worker at a random instant after the run has begun."""

    def __init__(self, choices: random.Random, longest: float = 0.25) -> None:
        super().__init__(name="killer")
        self.delay = choices.uniform(0, longest)
        self.choices = choices
        self.began = threading.Event()
        self.killed = 0

    def begin(self, progress: hogwild.Progress) -> None:
        """The run's first report."""
        self.began.set()

    def run(self) -> None:
        self.began.wait()
        time.sleep(self.delay)
        for worker in self.choices.sample(found := worker_processes(), len(found)):
            try:
                worker.kill()
                self.killed += 1
                return
            except psutil.NoSuchProcess:
                continue


@pytest.mark.filterwarnings("ignore:staleness")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("update", ["ordered", "sync", "snapshot"])
def test_random_kills(update, request):
    print(f"HOGWILD_SEED={SEED}")
    choices = random.Random(f"{SEED} {update}")
    digests, kills, failures = set(), 0, 0
    attempts = 0
    while kills < KILLS and attempts < 4 * KILLS:
        attempts += 1
        killer = Killer(choices)
        killer.start()
        with planted(RandomDelays(seed=choices.randrange(1 << 30), share=0.05)):
            run = train(update, workers=choices.choice([2, 3]), progress=killer.begin)
        killer.began.set()
        killer.join()
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
    assert kills >= KILLS
    assert failures > 0.3 * kills, "most kills should meet a worker at work"
    if update != "snapshot":
        assert digests == {train(update, workers=1).digest}
