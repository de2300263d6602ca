"""A bell is heard in another process, once for many rings, and by who comes too late to wait for it."""

from __future__ import annotations

import os
import threading
import time

import psutil

from hogwild.shared.arena import Arena
from hogwild.shared.bell import Bell
from hogwild.workers.process.spawn import start_context, start_lock, start_server, without_main

_MANY = 100_000  # more than a pipe holds


def heard(bell, within):
    """True where it rings so soon, seconds."""
    listener = threading.Thread(target=bell.wait, daemon=True)
    listener.start()
    listener.join(within)
    if listener.is_alive():
        bell.ring()  # so that it ends
        listener.join()
        return False
    return True


def ring_and_die(arena):
    """What a worker does that is killed right after."""
    arena.bell.ring()
    os.kill(os.getpid(), 9)


def test_a_bell_that_travels_with_the_memory_is_heard_though_who_rang_it_is_dead():
    start_server()
    arena = Arena(64, bell=Bell())
    worker = start_context().Process(target=ring_and_die, args=(arena,))
    with start_lock, without_main():
        worker.start()
    assert heard(arena.bell, within=60)
    worker.join(60)
    assert worker.exitcode == -9
    assert not heard(arena.bell, within=0.05), "one ring is heard once"


def test_nobody_waits_who_rings_and_no_ring_is_lost():
    bell = Bell()
    began = time.monotonic()
    for _ in range(_MANY):
        bell.ring()
    assert time.monotonic() - began < 30
    assert heard(bell, within=10)
    while heard(bell, within=0.05):
        pass
    bell.ring()
    assert heard(bell, within=10)


def test_its_descriptors_go_with_it():
    own = psutil.Process()
    before = own.num_fds()
    for _ in range(100):
        Bell()
    assert own.num_fds() <= before + 2
