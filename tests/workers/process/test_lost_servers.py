"""Python's fork server dies while a worker is being started."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from multiprocessing import forkserver, popen_forkserver, reduction

import problems
import psutil
import pytest
from warm_servers import warm_servers

import hogwild
from hogwild.testing import Fault, Hook, PlantedFault, planted
from hogwild.workers.process import spawn

FORKED = spawn.start_context().get_start_method() == "forkserver"
pytestmark = pytest.mark.skipif(not FORKED, reason="workers are spawned here")
SETTINGS = {"update": "ordered", "updates": 60}


@pytest.fixture(autouse=True)
def servers_start_sooner(monkeypatch):
    """The tests have imported what a server would import too, and no worker here needs."""
    monkeypatch.setattr(spawn, "_AHEAD", ())


@pytest.fixture(scope="module", autouse=True)
def servers_are_warm():
    with warm_servers():
        yield


@pytest.fixture(scope="module")
def undisturbed():
    return problems.train(kind="processes", **SETTINGS).digest


def kill_server():
    """Kill it and wait for its end, without reaping it: that is what Python will find."""
    pid = forkserver._forkserver._forkserver_pid
    os.kill(pid, signal.SIGKILL)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)


def before_it_is_asked(monkeypatch, now):
    found = forkserver._forkserver.ensure_running

    def ensure_running():
        found()
        if now():
            kill_server()

    monkeypatch.setattr(forkserver._forkserver, "ensure_running", ensure_running)


def before_it_is_told(monkeypatch, now):
    found = reduction.sendfds

    def sendfds(*arguments):
        if now():
            kill_server()
        return found(*arguments)

    monkeypatch.setattr(reduction, "sendfds", sendfds)


class Unheard:
    """A socket to the server, which is killed once something was sent there, before it can hear that."""

    def __init__(self, client):
        self._client = client

    def sendmsg(self, *arguments):
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
        self._client.sendmsg(*arguments)
        kill_server()

    def recv(self, count):
        """Python 3.14 waits for an acknowledgement."""
        return self._client.recv(count)


def before_it_hears(monkeypatch, now):
    found = reduction.sendfds

    def sendfds(client, descriptors):
        return found(Unheard(client) if now() else client, descriptors)

    monkeypatch.setattr(reduction, "sendfds", sendfds)


def before_it_answers(monkeypatch, now):
    """The worker is there, and nobody will ever know its process."""
    found = forkserver.read_signed

    def read_signed(descriptor):
        number = found(descriptor)
        if number > 0 and now():
            kill_server()
            raise EOFError("unexpected EOF")
        return number

    monkeypatch.setattr(popen_forkserver.forkserver, "read_signed", read_signed)


MOMENTS = [before_it_is_asked, before_it_is_told, before_it_hears, before_it_answers]


@pytest.mark.parametrize("start", [0, 2], ids=["first", "replaced"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_a_worker_is_being_started(moment, start, undisturbed, monkeypatch):
    calls = []

    def now():
        """True once, in the start of that number."""
        starting = threading.current_thread().name == "MainThread" and is_starting[0]
        calls.extend([None] * starting)
        return starting and len(calls) == start + 1

    is_starting = [False]
    watched(monkeypatch, is_starting)
    moment(monkeypatch, now)
    with planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 20)):
        run = problems.train(kind="processes", max_restarts=9, **SETTINGS)
    assert len(calls) > start, "nobody came to the moment"
    assert run.digest == undisturbed
    assert any("fork server" in failure for failure in run.failures)
    assert run.journal["update"].tolist() == list(range(60))


def watched(monkeypatch, is_starting):
    """Note when a worker is being started."""
    found = popen_forkserver.Popen._launch

    def launch(self, process):
        is_starting[0] = True
        try:
            found(self, process)
        finally:
            is_starting[0] = False

    monkeypatch.setattr(popen_forkserver.Popen, "_launch", launch)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_that_is_killed_again_and_again_ends_the_run_in_one_clear_error(moment, monkeypatch):
    is_starting = [False]
    watched(monkeypatch, is_starting)
    moment(monkeypatch, lambda: is_starting[0])
    with pytest.raises(hogwild.WorkerError, match="fork server") as caught:
        problems.train(kind="processes", max_restarts=2, **SETTINGS)
    assert "max_restarts is 2" in str(caught.value)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments_while_workers_are_replaced(seed, undisturbed):
    draws, ended, killed = random.Random(seed), threading.Event(), set()

    def kill():
        while not ended.wait(draws.uniform(0, 0.1)):
            pid = forkserver._forkserver._forkserver_pid
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):  # its end was seen, and another one is being started
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert digest_or_told() in (undisturbed, "told")
    finally:
        ended.set()
        killer.join()
    assert killed


def digest_or_told():
    try:
        with planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 20)):
            return problems.train(kind="processes", max_restarts=99, **SETTINGS).digest
    except hogwild.WorkerError as error:
        return "told" if "fork server" in str(error) else str(error)


def test_a_server_in_place_of_a_lost_one_starts_as_that_did(monkeypatch):
    """It looks for no module in the current folder."""
    monkeypatch.delenv(spawn.SAFE, raising=False)
    spawn.start_server()
    kill_server()
    process = spawn.start_context().Process(target=os.getpid)
    assert spawn.start_process(process)
    process.join()
    assert process.exitcode == 0
    assert psutil.Process(forkserver._forkserver._forkserver_pid).environ()[spawn.SAFE] == "1"


def test_a_name_too_long_for_a_socket_is_told(monkeypatch):
    def ensure_running():
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(forkserver, "ensure_running", ensure_running)
    with pytest.raises(hogwild.ArgumentError, match="folder for temporary files, has too long a name .* set TMPDIR"):
        spawn.start_server()
