"""A lock of processes excludes every other holder, is waited for, and goes with whoever dies with it; either kind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import problems
import pytest

from hogwild.shared import mutex
from hogwild.shared.arena import Arena, Space
from hogwild.shared.mutex import Mutex
from hogwild.shared.process_locks import ProcessLocks
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, both, planted
from hogwild.workers.process.spawn import start_context, start_lock, start_server, without_main

SHARDS = 3
TAKEN, LET_GO, COUNT = 0, 1, 2  # words
WORDS = 8
HERE = pytest.mark.skipif(not Mutex.works(), reason="no robust mutex on this platform: locks are bytes of a file")
KINDS = [pytest.param(True, id="mutex", marks=HERE), pytest.param(False, id="file")]


def locks_in(arena: Arena, mutexes: bool) -> ProcessLocks:
    return ProcessLocks(arena, 8 * WORDS, SHARDS, mutexes=mutexes)


@pytest.fixture(params=KINDS)
def shared(request):
    """(the arena, its locks, whether they are mutexes)"""
    space = Space()
    space.reserve(8 * WORDS)
    assert ProcessLocks.reserve(space, SHARDS) == 8 * WORDS
    arena = Arena(space.nbytes)
    locks = locks_in(arena, request.param)
    locks.prepare()
    yield arena, locks, request.param
    locks.let_go()


def started(target, *arguments):
    start_server()
    process = start_context().Process(target=target, args=arguments, daemon=True)
    with start_lock, without_main():
        process.start()
    return process


def until(arena, word, value):
    words, ends = arena.words(0, WORDS), time.monotonic() + 60
    while words[word] < value:
        assert time.monotonic() < ends
        time.sleep(0.001)


def hold(arena, mutexes, number):
    """Take a lock, say so, and keep it until told to let it go; die with it where nobody tells."""
    lock, words = locks_in(arena, mutexes).each[number], arena.words(0, WORDS)
    assert lock.acquire()
    words[TAKEN] = 1
    until(arena, LET_GO, 1)
    lock.release()
    words[TAKEN] = 0
    until(arena, LET_GO, 2)


def count(arena, mutexes, times):
    """Add to a word, which loses what others add meanwhile."""
    lock, words = locks_in(arena, mutexes).commit, arena.words(0, WORDS)
    for _ in range(times):
        with lock:
            seen = words[COUNT]
            os.sched_yield()
            words[COUNT] = seen + 1


@pytest.mark.parametrize("number", range(2 + SHARDS))
def test_each_is_tried_and_waited_for_by_itself(shared, number):
    arena, locks, mutexes = shared
    holder = started(hold, arena, mutexes, number)
    until(arena, TAKEN, 1)
    for other, lock in enumerate(locks.each):
        assert lock.acquire(blocking=False) is (other != number)
        if other != number:
            lock.release()
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(locks.each[number].acquire()), daemon=True)
    waiting.start()
    time.sleep(0.2)
    assert not taken, "the other process has it"
    arena.words(0, WORDS)[LET_GO] = 1
    waiting.join(60)
    assert taken == [True]
    arena.words(0, WORDS)[LET_GO] = 2
    holder.join(60)
    assert holder.exitcode == 0


def test_nothing_is_lost_between_processes(shared):
    arena, locks, mutexes = shared
    others = [started(count, arena, mutexes, 5_000) for _ in range(3)]
    count(arena, mutexes, 5_000)
    for other in others:
        other.join(60)
        assert other.exitcode == 0
    assert arena.words(0, WORDS)[COUNT] == 20_000
    assert locks.commit.acquire(blocking=False), "nobody has it"


@HERE
def test_a_mutex_excludes_threads_of_one_process_too():
    space = Space()
    space.reserve(8 * WORDS)
    ProcessLocks.reserve(space, SHARDS)
    arena = Arena(space.nbytes)
    locks_in(arena, True).prepare()
    others = [threading.Thread(target=count, args=(arena, True, 5_000)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert arena.words(0, WORDS)[COUNT] == 15_000


@pytest.mark.parametrize("times", [1, 3])
def test_it_goes_with_a_holder_that_is_killed(shared, times):
    """And is as good as before, for whoever tries it and for whoever already waits."""
    arena, locks, mutexes = shared
    for _ in range(times):
        holder = started(hold, arena, mutexes, 1)
        until(arena, TAKEN, 1)
        taken = []

        def wait(into=taken):
            into.append(locks.commit.acquire())
            locks.commit.release()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        time.sleep(0.1)
        assert not taken
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(60)
        assert holder.exitcode == -signal.SIGKILL
        waiting.join(60)
        assert taken == [True]
        assert locks.commit.acquire(blocking=False)
        locks.commit.release()
        arena.words(0, WORDS)[TAKEN] = 0


@HERE
def test_it_goes_with_a_thread_that_ends_with_it():
    arena = Arena(1024)
    locks = locks_in(arena, True)
    locks.prepare()
    ends = threading.Thread(target=locks.ticket.acquire)
    ends.start()
    ends.join()
    assert locks.ticket.acquire(), "else it waits for ever"
    locks.let_go()


@HERE
def test_a_kernel_that_keeps_it_is_found_out(monkeypatch):
    monkeypatch.setattr(mutex, "_ROBUST", 0)
    monkeypatch.setattr(mutex, "_PATIENCE", 0.1)
    assert not Mutex.works.__wrapped__()


@HERE
def test_who_was_interrupted_in_taking_it_has_it():
    """Else a run that Ctrl-C ends in that moment could not be saved, for it would wait for itself."""
    arena = Arena(1024)
    locks = locks_in(arena, True)
    locks.prepare()
    assert locks.ticket.acquire()  # and a signal raises before anybody knows
    assert locks.ticket.acquire(), "it waits for itself"
    found = []
    other = threading.Thread(target=lambda: found.append(locks.ticket.acquire(blocking=False)))
    other.start()
    other.join()
    locks.let_go()
    assert found == [False] and locks.ticket.acquire(blocking=False)
    locks.let_go()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of that kind")
def test_who_waits_for_it_hears_signals(shared):
    arena, locks, mutexes = shared
    holder = started(hold, arena, mutexes, 1)
    until(arena, TAKEN, 1)
    heard = []

    def handle(*_):
        heard.append(time.monotonic())
        arena.words(0, WORDS)[LET_GO] = 1

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        began = time.monotonic()
        locks.commit.acquire()  # which nobody lets go until the signal was heard
        assert len(heard) == 1 and heard[0] - began < 30
    finally:
        signal.signal(signal.SIGUSR1, before)
        arena.words(0, WORDS)[LET_GO] = 2
    locks.commit.release()
    holder.join(60)


# --- under a run


@pytest.mark.parametrize("mutexes", KINDS)
@pytest.mark.parametrize(("update", "hook"), [("ordered", Hook.OWNING), ("snapshot", Hook.PUBLISHING)])
def test_a_worker_killed_in_a_lock_leaves_it(update, hook, mutexes, monkeypatch):
    monkeypatch.setattr(Mutex, "works", lambda: mutexes)
    settings = {"update": update, "kind": "processes", "staleness": 2, "updates": 30}
    fault = PlantedFault(Fault.KILL, hook, 12)
    with planted(both(fault, RandomDelays(seed=1))):
        run = problems.train(workers=3, **settings)
    assert fault.fired and run.updates == 30 and len(run.failures) == 1
    if update == "ordered":
        assert run.digest == problems.train(workers=1, **settings).digest
