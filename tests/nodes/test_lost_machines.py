"""A machine is killed, stands still or is cut off at any moment of a run: the others go on with the same bits, and none
hangs.

pytest tests/nodes                          one of each
HOGWILD_NODE_KILLS=100 pytest tests/nodes   as many as you like; HOGWILD_NODE_STOPS and HOGWILD_NODE_CUTS likewise;
                                            HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from contextlib import contextmanager

import problems
import psutil
import pytest
from machines import machines, slow, told_by, without_machine_0
from side_by_side import within
from slow_links import links

pytestmark = [pytest.mark.filterwarnings("ignore:staleness"), pytest.mark.stress]
KILLS, STOPS, CUTS = (int(os.environ.get(f"HOGWILD_NODE_{what}", "1")) for what in ("KILLS", "STOPS", "CUTS"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
UPDATES = 300
BEGINS = """
def progress(how):
    now = time.monotonic()
    if how.updates and not begun:
        print(json.dumps({"updates": how.updates}), flush=True)
        begun.append((how.updates, now))
    if begun and how.updates > begun[-1][0]:
        begun.append((how.updates, now))
        more["longest"] = max(more.get("longest", 0), now - begun[-2][1])
begun = []
extra["progress"] = progress
"""
SETTINGS = {"update": "ordered", "staleness": 5, "optimizer": "MOMENTUM", "updates": UPDATES, "recheck": 0.02}


def digest_alone(**arguments):
    settings = {**SETTINGS, "optimizer": problems.MOMENTUM, **arguments}
    return problems.train(problems.conv_bn(), workers=1, **settings).digest


@pytest.fixture(scope="module")
def alone():
    return digest_alone()


@contextmanager
def begun(nodes, folder, hosts=(), **arguments):
    """So many machines whose run has begun, and does not end before the gate is opened; and the gate."""
    gate = folder / "gate"
    gate.unlink(missing_ok=True)
    settings = {"model": "conv_bn", "workers": 1, **SETTINGS, **arguments}
    with machines(nodes, folder, slow(gate, settings["updates"]) + BEGINS, hosts=hosts, **settings) as programs:
        for program in programs:
            assert "updates" in json.loads(program.output.readline()), "the run has begun"
        yield programs, gate


def survivors(nodes, folder, hurt, number=0, **arguments):
    """What the others say in the end, after `hurt(a program, choices)` somewhere in the run of one of them."""
    choices = random.Random(SEED + number)
    with begun(nodes, folder, **arguments) as (programs, gate):
        victim = choices.randrange(1, nodes)
        time.sleep(choices.uniform(0, 0.6))
        hurt(programs[victim], choices)
        gate.touch()
        return [told_by(program) for node, program in enumerate(programs) if node != victim]


@pytest.mark.parametrize(("nodes", "update"), [(2, "ordered"), (3, "ordered"), (3, "sync")])
@pytest.mark.timeout(3600)
def test_machines_that_are_killed(nodes, update, tmp_path):
    print(f"HOGWILD_SEED={SEED}")
    more = {"micro_batches": 4, "updates": 100} if update == "sync" else {}
    alone = digest_alone(update=update, **more)
    inside, tried, stood = 0, 0, []
    while inside < KILLS and tried < 4 * KILLS:
        tried += 1
        found = survivors(nodes, tmp_path, lambda program, _: program.killed(), tried, update=update, **more)
        assert {told.get("digest", str(told)) for told in found} == {alone}
        if all("was lost at update" in " ".join(told["failures"]) for told in found):
            inside += 1
            stood.append(max(told["longest"] for told in found))
    print(f"{nodes} machines, {update}: {inside} of {tried} kills fell inside the run; {told_of(stood)}")
    assert inside >= KILLS


def told_of(stood):
    return f"longest time without a version: median {statistics.median(stood):.2f} s, at most {max(stood):.2f} s"


@pytest.mark.timeout(3600)
def test_a_machine_that_stands_still_is_lost_after_the_timeout(tmp_path, alone):
    def stop(program, _):
        os.kill(program.process.pid, signal.SIGSTOP)
        for child in psutil.Process(program.process.pid).children(recursive=True):
            child.suspend()
            stopped.append(child)

    stood, stopped = [], []
    for number in range(STOPS):
        found = survivors(2, tmp_path, stop, number, node_timeout=2.0)
        assert [told.get("digest", str(told)) for told in found] == [alone]
        assert "it has said nothing for 2 s" in found[0]["failures"][0]
        stood.append(found[0]["longest"])
        while stopped:  # they do not see that their program was killed
            stopped.pop().kill()
    print(f"{STOPS} machines stood still, node_timeout 2 s; {told_of(stood)}")


def test_who_wakes_is_told_that_the_others_count_it_as_lost(tmp_path, alone):
    """And not that machine 0 was lost, which trains on."""
    errors = tmp_path / "errors 0"
    with begun(2, tmp_path, node_timeout=2.0) as (programs, gate):
        sleeper = psutil.Process(programs[1].process.pid)
        stopped = [sleeper, *sleeper.children(recursive=True)]
        for process in stopped:
            process.suspend()
        within(60, lambda: "machine 1 was lost at update" in errors.read_text())
        for process in stopped:
            process.resume()
        woken = told_by(programs[1])
        gate.touch()
        assert told_by(programs[0]).get("digest") == alone
    assert woken.get("error") == "NodeError", woken
    assert "machine 1 stood still for too long, or was cut off: machine 0 counts it as lost" in woken["message"]
    assert "start it again, and it comes back" in woken["message"]


@pytest.mark.timeout(3600)
def test_a_machine_that_is_cut_off_ends_and_the_others_go_on(tmp_path, alone):
    stood, ended = [], []
    for number in range(CUTS):
        nodes = 2 + number % 2
        with links(nodes, 0.002) as net, begun(nodes, tmp_path, net.hosts, node_timeout=2.0) as (programs, gate):
            choices = random.Random(SEED + number)
            victim = choices.randrange(1, nodes)
            time.sleep(choices.uniform(0, 0.6))
            net.cut(victim)
            cut = time.monotonic()
            gate.touch()
            fenced = told_by(programs.pop(victim))
            ended.append(time.monotonic() - cut)
            found = [told_by(program) for program in programs]
        assert fenced.get("error") == "NodeError" and "machine 0 was lost" in fenced["message"], fenced
        assert {told.get("digest", str(told)) for told in found} == {alone}
        assert all("it has said nothing for 2 s" in told["failures"][0] for told in found)
        stood.extend(told["longest"] for told in found)
    print(f"{CUTS} cuts, node_timeout 2 s; {told_of(stood)}; the cut one ended after {max(ended):.2f} s at most")


def test_two_that_lose_each_other_go_on_by_the_third(tmp_path, alone):
    with links(3, 0.002) as net, begun(3, tmp_path, net.hosts, node_timeout=5.0) as (programs, gate):
        net.cut(1, 2)
        gate.touch()
        found = [told_by(program) for program in programs]
    assert [told.get("digest", str(told)) for told in found] == [alone] * 3
    assert found[0]["failures"] == []
    assert ["machine 2 was lost" in found[1]["failures"][0], "machine 1 was lost" in found[2]["failures"][0]] == [
        True
    ] * 2


def test_a_short_cut_changes_nothing(tmp_path, alone):
    with links(2, 0.002) as net, begun(2, tmp_path, net.hosts, node_timeout=60.0) as (programs, gate):
        net.cut(1)
        gate.touch()
        time.sleep(0.5)
        net.mend(1)
        found = [told_by(program) for program in programs]
    assert [told.get("digest", str(told)) for told in found] == [alone] * 2
    assert [told["failures"] for told in found] == [[], []]
    assert min(told["longest"] for told in found) >= 0.4, "they stood still meanwhile"


def test_the_loss_of_the_machine_that_keeps_the_record_ends_the_run(tmp_path):
    source = slow(tmp_path / "gate", UPDATES) + BEGINS
    with machines(2, tmp_path, source, model="conv_bn", workers=1, **SETTINGS) as programs:
        told = without_machine_0(programs)
    assert told["error"] == "NodeError"
    assert "machine 0" in told["message"]


NEVER_CONNECTS = """
import time
import hogwild.run.machines as module
begin = module.Machines.__init__
def connects(self, *arguments):
    print(json.dumps("has agreed"), flush=True)
    if os.environ["RANK"] == "0":
        time.sleep(600)
    begin(self, *arguments)
module.Machines.__init__ = connects
"""


@pytest.mark.parametrize("rule", [{"update": "ordered"}, {"update": "hogwild", "average_every": 10}], ids=str)
def test_the_loss_of_machine_0_while_the_couriers_connect_ends_the_run(rule, tmp_path):
    began = time.monotonic()
    with machines(2, tmp_path, NEVER_CONNECTS, workers=1, **{**SETTINGS, **rule}) as programs:
        told = without_machine_0(programs)
    assert time.monotonic() - began < 60, "the couriers are given two minutes"
    assert told["error"] == "NodeError"
    assert "machine 0 was lost while the machines connected" in told["message"]


@pytest.mark.parametrize("interrupted", [0, 1])
def test_ctrl_c_on_one_machine_ends_all_and_the_run_goes_on_anywhere(interrupted, tmp_path, alone):
    own, gate = [{"out": str(tmp_path / "run")}, {}], tmp_path / "gate"
    source = slow(gate, UPDATES) + BEGINS
    with machines(2, tmp_path, source, own=own, model="conv_bn", workers=1, **SETTINGS) as programs:
        for program in programs:
            program.output.readline()
        os.kill(programs[interrupted].process.pid, signal.SIGINT)
        gate.touch()
        told = [told_by(program) for program in programs]
    assert [one.get("error") for one in told] == ["KeyboardInterrupt"] * 2, told
    again = {**SETTINGS, "optimizer": problems.MOMENTUM, "resume": tmp_path / "run"}
    run = problems.train(problems.conv_bn(), workers=2, kind="processes", **again)
    assert run.digest == alone
    assert run.samples_before > 0
