"""A machine that was lost is started again while the others train: it trains with them, and the bits are those of one.

pytest tests/nodes -k come_back             a few
HOGWILD_NODE_JOINS=30 pytest tests/nodes    as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from contextlib import contextmanager

import problems
import pytest
from machines import machines, told_by
from slow_links import links

pytestmark = [pytest.mark.filterwarnings("ignore:staleness"), pytest.mark.stress]
JOINS = int(os.environ.get("HOGWILD_NODE_JOINS", "1"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SETTINGS = {"update": "ordered", "staleness": 5, "optimizer": "MOMENTUM", "updates": 400, "recheck": 0.02}
PACED = """
import time
def loss(model, batch):
    computed.append(batch)
    time.sleep(0.001 if os.path.exists({gate!r}) else 0.04 if len(computed) < 40 else 0.4)
    return problems.cross_entropy(model, batch)
def progress(how):
    now = time.monotonic()
    if how.updates and not seen:
        print(json.dumps({{"updates": how.updates}}), flush=True)
        seen.append((how.updates, now))
    elif seen and how.updates > seen[-1][0]:
        more["longest"] = max(more.get("longest", 0), now - seen[-1][1])
        if seen[0][0] + 6 > seen[-1][0]:
            seen.append((how.updates, now))
            if how.updates >= seen[0][0] + 6:
                print(json.dumps({{"updates": how.updates}}), flush=True)
        else:
            seen[-1] = how.updates, now
def frozen():
    model = problems.conv_bn()
    model[1].requires_grad_(False)
    torch.nn.init.constant_(model[1].bias, float(os.environ.get("FROZEN", "0")))
    return model
problems.frozen = frozen
train = problems.train
def persistent(model, **arguments):
    try:
        return train(model, **arguments)
    except hogwild.NodeError as error:
        print(json.dumps({{"cut": str(error)}}), flush=True)
        while not os.path.exists({gate!r} + " mended"):
            time.sleep(0.01)
        seen.clear()
        return train(model, **arguments)
problems.train = persistent
seen, computed = [], []
extra = {{"loss": loss, "progress": progress}}
"""


def alone(**arguments):
    settings = {**SETTINGS, "optimizer": problems.MOMENTUM, **arguments}
    return problems.train(problems.conv_bn(), workers=1, **settings).digest


@contextmanager
def begun(nodes, folder, hosts=(), **arguments):
    """So many machines whose run has begun, and goes on slowly until the gate is opened; and the gate."""
    gate = folder / "gate"
    gate.unlink(missing_ok=True)
    settings = {"model": "conv_bn", "workers": 1, **SETTINGS, **arguments}
    with machines(nodes, folder, PACED.format(gate=str(gate)), hosts=hosts, **settings) as programs:
        for program in programs:
            trains(program)
        yield programs, gate


def trains(program):
    """Wait until it has made some versions; returns the number of the newest."""
    for _ in range(2):
        found = json.loads(program.output.readline())
        assert set(found) == {"updates"}, found
    return found["updates"]


def told_at_end(programs, gate):
    gate.touch()
    found = [told_by(program) for program in programs]
    assert [program.ended() for program in programs] == [0] * len(programs)
    return found


def check(found, alone, lost):
    """All have the bits of one machine; those that lived say who was lost and came back, who then computed."""
    assert [told.get("digest", str(told)) for told in found] == [alone] * len(found)
    assert all(told["journal"][-100:] == found[0]["journal"][-100:] for told in found)
    for told in (told for node, told in enumerate(found) if node != lost):
        assert f"machine {lost} was lost at update" in told["failures"][0]
        assert f"machine {lost} came back at update" in told["failures"][-1]
    back = int(found[0]["failures"][-1].split()[-1])
    assert lost in found[0]["journal"][back:], "it computed again"
    assert max(told["longest"] for node, told in enumerate(found) if node != lost) < 15, "nobody stood still"


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_machine_that_was_killed_comes_back(kind, tmp_path):
    more = {"update": "sync", "micro_batches": 4, "updates": 200, "kind": kind}
    with begun(3, tmp_path, **more) as (programs, gate):
        programs[1].killed()
        trains(programs.again(1))
        found = told_at_end(programs, gate)
    check(found, alone(**more), lost=1)


@pytest.mark.timeout(3600)
def test_it_comes_back_at_any_moment_and_is_killed_at_any_moment_of_that(tmp_path):
    print(f"HOGWILD_SEED={SEED}")
    wanted, stood, tried = alone(), [], 0
    for number in range(JOINS):
        choices = random.Random(SEED + number)
        with begun(2 + number % 2, tmp_path) as (programs, gate):
            victim = choices.randrange(1, len(programs))
            programs[victim].killed()
            if number % 2 == 0:
                tried += 1
                programs.again(victim)
                time.sleep(choices.uniform(0.5, 4))
                programs[victim].killed()
            trains(programs.again(victim))
            found = told_at_end(programs, gate)
        check(found, wanted, lost=victim)
        stood.extend(told["longest"] for node, told in enumerate(found) if node != victim)
    print(
        f"{JOINS} machines came back, {tried} of them killed on their way; the others stood "
        f"{statistics.median(stood):.2f} s (median; at most {max(stood):.2f} s)"
    )


def test_a_program_that_was_cut_off_comes_back_when_the_link_is_mended(tmp_path):
    wanted = alone()
    with links(2, 0.002) as net, begun(2, tmp_path, net.hosts, node_timeout=5.0) as (programs, gate):
        net.cut(1)
        assert "machine 0 was lost" in told_by(programs[1])["cut"]
        net.mend(1)
        gate.with_name("gate mended").touch()
        trains(programs[1])
        found = told_at_end(programs, gate)
    check(found, wanted, lost=1)


def test_who_does_not_fit_is_refused_and_the_others_go_on(tmp_path):
    def refused(message, **changed):
        told = told_by(programs.again(1, **changed))
        assert told["error"] == "ArgumentError" and message in told["message"], told

    with begun(2, tmp_path, node_timeout=5.0, model="frozen") as (programs, gate):
        machine = programs[1]
        refused("machine 1 is there, and none is lost")
        machine.killed()
        refused("workers is 2, and machine 1, whose place this one takes, had 1; set workers=1", workers=2)
        refused("the machines do not train the same: seed is 3 on machine 1 and 0 on machine 0", seed=3)
        refused("frozen parameters is ", environment={"FROZEN": "1"})
        refused("machine 0 has another token than this one", environment={"HOGWILD_TOKEN": "b"})
        found = told_at_end(programs[:1], gate)
    assert "digest" in found[0], found
    assert len(found[0]["failures"]) == 1, found[0]["failures"]
