"""A machine is killed, or stands still, at any moment of a run: the others go on with the same bits, and none hangs.

pytest tests/nodes                          a kill or two each
HOGWILD_NODE_KILLS=100 pytest tests/nodes   as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import json
import os
import random
import signal
import time

import problems
import psutil
import pytest
from machines import machines, told_by

pytestmark = [pytest.mark.filterwarnings("ignore:staleness"), pytest.mark.stress]
KILLS = int(os.environ.get("HOGWILD_NODE_KILLS", "1"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
UPDATES = 300
SLOW = """
import time
def loss(model, batch):
    time.sleep(0.005)
    return problems.cross_entropy(model, batch)
def progress(how):
    if how.updates and not begun:
        begun.append(how.updates)
        print(json.dumps({"updates": how.updates}), flush=True)
begun = []
extra = {"loss": loss, "progress": progress}
"""
SETTINGS = {"update": "ordered", "staleness": 5, "optimizer": "MOMENTUM", "updates": UPDATES, "recheck": 0.02}


def digest_alone(**arguments):
    settings = {**SETTINGS, "optimizer": problems.MOMENTUM, **arguments}
    return problems.train(problems.conv_bn(), workers=1, **settings).digest


@pytest.fixture(scope="module")
def alone():
    return digest_alone()


def survivors(nodes, folder, hurt, number=0, **arguments):
    """What the others say in the end, after `hurt(a program, choices)` somewhere in the run of one of them."""
    choices = random.Random(SEED + number)
    settings = {"model": "conv_bn", "workers": 1, **SETTINGS, **arguments}
    with machines(nodes, folder, SLOW, **settings) as programs:
        for program in programs:
            assert "updates" in json.loads(program.output.readline()), "the run has begun"
        victim = choices.randrange(1, nodes)
        time.sleep(choices.uniform(0, 0.6))
        hurt(programs[victim], choices)
        return [told_by(program) for node, program in enumerate(programs) if node != victim]


@pytest.mark.parametrize(("nodes", "update"), [(2, "ordered"), (3, "ordered"), (3, "sync")])
@pytest.mark.timeout(3600)
def test_machines_that_are_killed(nodes, update, tmp_path):
    print(f"HOGWILD_SEED={SEED}")
    more = {"micro_batches": 4, "updates": 100} if update == "sync" else {}
    alone = digest_alone(update=update, **more)
    inside, tried = 0, 0
    while inside < KILLS and tried < 4 * KILLS:
        tried += 1
        found = survivors(nodes, tmp_path, lambda program, _: program.killed(), tried, update=update, **more)
        assert {told.get("digest", str(told)) for told in found} == {alone}
        lost = [told["failures"] for told in found]
        inside += all("was lost at update" in " ".join(failures) for failures in lost)
    print(f"{nodes} machines, {update}: {inside} of {tried} kills fell inside the run")
    assert inside >= KILLS


@pytest.mark.timeout(600)
def test_a_machine_that_stands_still_is_lost_after_the_timeout(tmp_path, alone):
    def stop(program, _):
        os.kill(program.process.pid, signal.SIGSTOP)
        for child in psutil.Process(program.process.pid).children(recursive=True):
            child.suspend()

    found = survivors(2, tmp_path, stop, node_timeout=2.0)
    assert [told.get("digest", str(told)) for told in found] == [alone]
    assert "it has said nothing for 2 s" in found[0]["failures"][0]


def test_the_loss_of_the_machine_that_keeps_the_record_ends_the_run(tmp_path):
    with machines(2, tmp_path, SLOW, model="conv_bn", workers=1, **SETTINGS) as programs:
        for program in programs:
            program.output.readline()
        programs[0].killed()
        told = told_by(programs[1])
    assert told["error"] == "NodeError"
    assert "machine 0" in told["message"]


@pytest.mark.parametrize("interrupted", [0, 1])
def test_ctrl_c_on_one_machine_ends_all_and_the_run_goes_on_anywhere(interrupted, tmp_path, alone):
    own = [{"out": str(tmp_path / "run")}, {}]
    with machines(2, tmp_path, SLOW, own=own, model="conv_bn", workers=1, **SETTINGS) as programs:
        for program in programs:
            program.output.readline()
        os.kill(programs[interrupted].process.pid, signal.SIGINT)
        told = [told_by(program) for program in programs]
    assert [one.get("error") for one in told] == ["KeyboardInterrupt"] * 2, told
    again = {**SETTINGS, "optimizer": problems.MOMENTUM, "resume": tmp_path / "run"}
    run = problems.train(problems.conv_bn(), workers=2, kind="processes", **again)
    assert run.digest == alone
    assert run.samples_before > 0
