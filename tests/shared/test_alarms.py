"""Who waits for a version sleeps until another thread or process makes it, and looks no more often than that."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest
from side_by_side import within

from hogwild.shared import alarms
from hogwild.shared.alarms import PLACES, Alarms
from hogwild.shared.arena import Arena, Space
from hogwild.shared.tickets import Control
from hogwild.shared.words import Field, Word
from hogwild.workers.process.spawn import start_context, start_lock, start_server, without_main

REQUEUE = 3  # of futex
LONG = 60.0  # seconds, which no sleep here is to last
SLEEPY = pytest.mark.skipif(not Alarms.works, reason="no futex on this platform: who waits looks again and again")


def sleepers_at(arena, *versions):
    """How many sleep for these, as the kernel counts them where it is to let them sleep at the same word as before."""
    found, everybody = alarms_of(arena), 2**31 - 1
    words = [found._address + 8 * (version % PLACES) for version in versions]
    return sum(found._futex(alarms._NUMBER, word, REQUEUE, 0, everybody, word, 0) for word in words)


class Sleeper(threading.Thread):
    """Sleeps once for that version."""

    def __init__(self, arena, version):
        super().__init__(daemon=True)
        self._words, self._version = arena.words(0, PLACES), version
        self.start()
        until(lambda: sleepers_at(arena, version) == 1)

    def run(self):
        Alarms(self._words).sleep(self._version, lambda: False, LONG)


until = partial(within, LONG)


@pytest.fixture
def arena():
    return Arena(8 * PLACES)


def alarms_of(arena):
    return Alarms(arena.words(0, PLACES))


def wake_and_die(arena, version):
    """What a worker does that is killed right after."""
    alarms_of(arena).wake(version)
    os.kill(os.getpid(), 9)


@SLEEPY
def test_another_process_wakes_who_waits_for_its_version_and_nobody_else(arena):
    start_server()
    mine, other = Sleeper(arena, PLACES + 3), Sleeper(arena, 4)
    maker = start_context().Process(target=wake_and_die, args=(arena, PLACES + 3))
    with start_lock, without_main():
        maker.start()
    mine.join(LONG)
    maker.join(LONG)
    assert maker.exitcode == -9 and not mine.is_alive()
    assert sleepers_at(arena, 4) == 1 and other.is_alive(), "no version of its own was made"
    alarms_of(arena).wake(4)
    other.join(LONG)
    assert not other.is_alive()


@SLEEPY
def test_one_is_roused_or_all_are(arena):
    alarms_of(arena).sleep(0, lambda: True, LONG)  # leaves its word, and nobody asleep
    sleepers = [Sleeper(arena, version) for version in (1, 2, 3)]
    alarms_of(arena).rouse(1)
    assert sleepers_at(arena, 1, 2, 3) == 2
    until(lambda: sum(not one.is_alive() for one in sleepers) == 1)
    alarms_of(arena).rouse()
    for one in sleepers:
        one.join(LONG)
        assert not one.is_alive()


@SLEEPY
def test_who_was_rung_before_it_slept_does_not_sleep_because_another_came_to_wait(arena):
    first, second = alarms_of(arena), alarms_of(arena)

    def meanwhile():
        """The first has looked in vain; its version is made then, and another waits for a later one in that place."""
        alarms_of(arena).wake(5)
        second.sleep(5 + PLACES, lambda: True, LONG)
        return False

    began = time.monotonic()
    first.sleep(5, meanwhile, LONG)
    assert time.monotonic() - began < LONG / 2


@SLEEPY
def test_nobody_sleeps_for_what_is_there_nor_longer_than_it_may(arena):
    began = time.monotonic()
    alarms_of(arena).sleep(1, lambda: True, LONG)
    alarms_of(arena).sleep(2, lambda: False, 0.05)
    assert 0.05 <= time.monotonic() - began < LONG / 2


def control_for(workers):
    space = Space()
    offset = Control.reserve(space, workers, 1)
    arena = Arena(space.nbytes)
    control = Control(arena, offset, workers, 1)
    control.prepare(0, 10)
    return control


@pytest.mark.parametrize("works", [pytest.param(True, marks=SLEEPY), False], ids=["alarms", "no alarms"])
def test_a_wait_for_a_version_ends_with_it(works, monkeypatch):
    monkeypatch.setattr(Alarms, "works", works)
    control, looks = control_for(workers=1000), []  # more than there are cores: nobody yields

    def is_there():
        looks.append(time.monotonic())
        return control[Word.HEAD] >= 7

    waiter = threading.Thread(target=control.wait_until, args=(is_there, 0, 7))
    waiter.start()
    until(lambda: control.row(0)[Field.LOOKS])
    began = time.monotonic_ns()
    until(lambda: len(looks) > (40 if works else 10))
    at_least = time.monotonic_ns() - began
    for version in range(1, 8):
        control.publish(Word.HEAD, version)
        control.alarms.wake(version)
    waiter.join(LONG)
    assert not waiter.is_alive() and control.row(0)[Field.WAITED] >= at_least and not control.row(0)[Field.WAITING]
    if works:
        waited = control.row(0)[Field.WAITED] / 1e9
        assert len(looks) < 2 * waited / 0.02 + 20, "it slept, and was not sent looking"


@SLEEPY
def test_those_are_counted_who_sleep(arena):
    alarms = alarms_of(arena)
    assert alarms.asleep() == 0
    sleepers = [Sleeper(arena, version) for version in (3, 4)]
    assert alarms.asleep() == 2
    alarms.wake(3)
    sleepers[0].join(LONG)
    assert alarms.asleep() == 1
    alarms.rouse()
    sleepers[1].join(LONG)
    assert alarms.asleep() == 0
