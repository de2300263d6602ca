"""The program itself is killed (SIGKILL) at random instants and resumed, again and again, until the run is over.

pytest tests/stress -k killed_programs     a chain for each rule
HOGWILD_CHAINS=30 pytest tests/stress …    as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import problems
import pytest
from programs import started
from traits import NAMES, SAME_BITS

from hogwild.determinism.replay import read_record

pytestmark = pytest.mark.stress

CHAINS = int(os.environ.get("HOGWILD_CHAINS", "1"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
UPDATES = 120
KILLS = 3  # of a chain
LATEST = 0.4  # seconds after the first update; two workers that sleep 15 ms an update take 0.9 s for all

PROGRAM = f"""
import sys, time
from pathlib import Path
import hogwild, problems

update, out, will_be_killed = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "True"

def slow(model, batch):
    last = hogwild.worker_info().update == {UPDATES - 1}
    time.sleep(600 if will_be_killed and last else 0.015)  # however late the kill comes, it meets the program
    return problems.cross_entropy(model, batch)

told = []

def tell(progress):
    if progress.updates and not told:
        told.append(True)
        print("trains", flush=True)

saved = (out / "checkpoint.safetensors").exists()
problems.train(
    problems.conv_bn(), update=update, loss=slow, workers=2, kind="processes", updates={UPDATES}, checkpoint_every=10,
    out=out, resume=out if saved else None, progress=tell,
)
"""


def killed(update: str, out: Path, delay: float | None) -> bool:
    """Run the program; kill it so many seconds after it has begun to train. False: it came to its end."""
    errors = out.parent / "errors.txt"
    with started(PROGRAM, update, str(out), str(delay is not None), errors=errors) as program:
        program.output.readline()
        if delay is not None:
            time.sleep(delay)
            program.process.kill()
        status = program.ended()
    assert status in (0, -signal.SIGKILL), errors.read_text()
    return status != 0


def chain(update: str, folder: Path, choices: random.Random) -> tuple[Path, int]:
    """(the folder of a run that was killed and resumed until it was over, how often it was killed)."""
    kills, attempt = 0, 0
    folder.mkdir()
    while killed(update, folder / str(attempt), choices.uniform(0, LATEST) if kills < KILLS else None):
        kills += 1
        if not (folder / str(attempt) / "checkpoint.safetensors").exists():
            attempt += 1  # there is nothing to go on from
    return folder / str(attempt), kills


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("update", NAMES)
def test_killed_programs(update, tmp_path):
    print(f"HOGWILD_SEED={SEED}")
    choices = random.Random(f"{SEED} {update}")
    digests, kills = set(), 0
    for number in range(CHAINS):
        out, times = chain(update, tmp_path / f"chain-{number}", choices)
        record = read_record(out)
        kills += times
        digests.add(record.digest)
        assert record.updates == UPDATES
        assert np.array_equal(np.sort(record.journal["update"]), np.arange(UPDATES)), "an update was lost or doubled"
        assert not list(out.glob(".*")), "a saver that was killed has left something"
    print(f"{update}: {CHAINS} chains, {kills} kills, {len(digests)} digests")
    assert kills == CHAINS * KILLS
    if update in SAME_BITS:
        assert digests == {problems.train(problems.conv_bn(), update=update, updates=UPDATES, workers=1).digest}
