"""Fork servers of this process that start in milliseconds: each is a fork of a nursery that has torch imported.

    this process ── what a server is to be told, and its files ──▶ nursery, forked by the server there was before
                 ◀── its number ──                                   └─ fork ─ fork: the server, whose parent has left

For tests that kill servers. This process becomes the parent of what has lost its own, as it is that of a server which
it starts itself. What starting the interpreter does is for tests that start one.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from typing import Any

from programs import never_a_server

from hogwild.workers.process.early import _InTheFork
from hogwild.workers.process.spawn import start_context, start_process, start_server

_SET_CHILD_SUBREAPER = 36  # prctl's


@contextmanager
def warm_servers() -> Iterator[None]:
    """Inside, this process starts its fork servers so."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = start_context().Process(target=_nursery, args=(theirs,))
    assert start_process(nursery)
    theirs.close()
    original = util.spawnv_passfds

    def start(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        told = list(arguments[arguments.index("-c") + 1 :])
        if "multiprocessing.forkserver" not in told[0]:
            return original(path, arguments, descriptors)
        asked = {"told": told, "files": [0, 1, 2, *descriptors], "environment": dict(os.environ)}
        asked["ignores_ctrl_c"] = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        socket.send_fds(ours, [json.dumps(asked).encode()], [0, 1, 2, *descriptors])
        return int(ours.recv(64))

    _adopt(1)
    util.spawnv_passfds = start  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = original
        _adopt(0)
        ours.close()
        nursery.join()
        with suppress(ChildProcessError):  # else it is a child of this process since its server was killed
            os.waitpid(nursery.pid or 0, 0)


@contextmanager
def own_server() -> Iterator[None]:
    """Inside, this process has a fork server that is started there, and afterwards one that is started then."""
    with warm_servers():
        _end_server()
        try:
            yield
        finally:
            _end_server()
            start_server()


def _end_server() -> None:
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)  # or it would wait for those that it has forked
        server._stop()


def _adopt(yes: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, yes, 0, 0, 0) == 0


def _nursery(asks: socket.socket) -> None:
    never_a_server()
    while True:
        text, descriptors, _, _ = socket.recv_fds(asks, 1 << 20, 16)
        if not text:
            return
        asked: dict[str, Any] = json.loads(text)
        read, write = os.pipe()
        between = os.fork()
        if not between:
            if not (number := os.fork()):
                _become(asked, descriptors)
            os.write(write, str(number).encode())
            os._exit(0)
        os.waitpid(between, 0)  # or the server would not be a child of who asks yet
        asks.send(os.read(read, 64))
        for descriptor in (read, write, *descriptors):
            os.close(descriptor)


def _become(asked: dict[str, Any], descriptors: Sequence[int]) -> None:
    """What a new Python would be, that is told so."""
    numbers = asked["files"]
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(numbers) + 1) for descriptor in descriptors]
    for number, descriptor in zip(numbers, aside, strict=True):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    signal.signal(signal.SIGINT, signal.SIG_IGN if asked["ignores_ctrl_c"] else signal.default_int_handler)
    _InTheFork(asked["told"], numbers[3:]).serve()
