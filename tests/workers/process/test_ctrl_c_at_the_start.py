"""Ctrl-C while a process of ours is started: it goes to all programs of a terminal, and only the parent acts on it."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import forkserver

import psutil
import pytest
from programs import started
from warm_servers import own_server

from hogwild.workers.process import spawn

FORKED = sys.platform == "linux"
ON_LINUX = pytest.mark.skipif(not FORKED, reason="there is no fork server")


@pytest.fixture(autouse=True, scope="module")
def _heard() -> Iterator[None]:
    """As in a program of a terminal, with its fork server; what a script starts in the background ignores Ctrl-C."""
    with own_server() if FORKED else nullcontext():
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)


class Interrupting:
    """Sends Ctrl-C to the process that unpickles it."""

    def __reduce__(self) -> object:
        return _interrupted, ()


HEARD = 7


def _interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def of_ours(_: object, again: bool) -> None:
    spawn.begin(signal.default_int_handler)
    if again:
        try:
            _interrupted()
            time.sleep(60)  # where it is not heard
        except KeyboardInterrupt:
            sys.exit(HEARD)


def of_another(_: object) -> None: ...


METHODS = [pytest.param("forkserver", marks=ON_LINUX), "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_a_process_of_ours_is_deaf_until_it_has_begun(method, monkeypatch):
    """The first Ctrl-C comes while it is started; the second is its own."""
    if method == "spawn":  # as on macOS
        monkeypatch.setattr(spawn, "start_context", lambda: multiprocessing.get_context(method))
    process = spawn.make_process(of_ours, (Interrupting(), True))
    assert _status_of(process) == HEARD


@pytest.mark.parametrize("method", METHODS)
def test_a_process_of_another_library_hears_it(method):
    """It is forked by the same server."""
    spawn.start_server()
    process = multiprocessing.get_context(method).Process(target=of_another, args=[Interrupting()])
    with spawn.without_main():
        process.start()
    process.join()
    assert process.exitcode == (1 if method == "forkserver" else -signal.SIGINT)


def _status_of(process) -> int | None:
    assert spawn.start_process(process)
    process.join()
    return process.exitcode


@ON_LINUX
def test_a_fork_server_outlives_a_start_that_is_interrupted(monkeypatch):
    spawn.start_server()
    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    send = forkserver.reduction.sendfds

    def interrupted(*arguments) -> None:
        _thread.interrupt_main()  # as where it reaches a thread that does not hold it back
        send(*arguments)

    monkeypatch.setattr(forkserver.reduction, "sendfds", interrupted)
    process = spawn.make_process(time.sleep, (60,))
    with pytest.raises(KeyboardInterrupt):
        spawn.start_process(process)
    assert process.exitcode == -signal.SIGKILL, "nobody would wait for it"
    monkeypatch.undo()
    assert _status_of(spawn.make_process(of_ours, (None, False))) == 0
    assert psutil.Process(forkserver._forkserver._forkserver_pid) == server


SERVER = """
import os, signal, sys
assert "hogwild.workers.process.preload" not in sys.modules
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
original = signal.signal
import hogwild.workers.process.preload
os.kill(os.getpid(), signal.SIGINT)
assert signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_DFL
assert signal.signal(signal.SIGINT, signal.SIG_IGN) == signal.default_int_handler
assert not signal.pthread_sigmask(signal.SIG_BLOCK, {}) and signal.signal == original
"""


def test_the_server_is_deaf_until_it_ignores_it(tmp_path):
    with started(SERVER, errors=tmp_path / "errors", warm=False) as program:
        assert (program.ended(), (tmp_path / "errors").read_text()) == (0, "")
