"""A planted fault befalls one worker, also where several come to its hook at once."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from hogwild.testing import Fault, Hook, PlantedError, PlantedFault, both

THREADS, ROUNDS = 8, 100


def test_of_several_that_come_at_once_it_befalls_one():
    for _ in range(ROUNDS):
        fault, met, at_once = PlantedFault(Fault.RAISE, Hook.COMPUTING, 3), [], threading.Barrier(THREADS)

        def come(fault=fault, met=met, at_once=at_once):
            seat = SimpleNamespace(ticket=3)
            at_once.wait()
            try:
                fault(Hook.COMPUTING, seat)
            except PlantedError as error:
                met.append(error)

        comers = [threading.Thread(target=come) for _ in range(THREADS)]
        for comer in comers:
            comer.start()
        for comer in comers:
            comer.join()
        assert len(met) == 1
        assert fault.fired


def test_a_fault_that_befell_nobody_says_so():
    fault = PlantedFault(Fault.RAISE, Hook.COMPUTING, 3)
    with pytest.raises(AssertionError, match=r"Fault\.RAISE befell nobody: .* Hook\.COMPUTING with update 3; plant it"):
        fault.assert_fired()
    with suppress(PlantedError):
        fault(Hook.COMPUTING, SimpleNamespace(ticket=3))
    fault.assert_fired()


def test_more_than_two_are_planted_one_after_the_other():
    met: list[int] = []
    pauses = [lambda hook, seat, number=number: met.append(number) for number in range(3)]
    both(*pauses)(Hook.COMPUTING, SimpleNamespace(ticket=3))
    assert met == [0, 1, 2]


def test_what_it_leaves_behind_goes_with_it():
    fault = PlantedFault(Fault.RAISE, Hook.COMPUTING, 3)
    mark = fault._mark
    mark.touch()
    assert fault.fired
    del fault
    assert not mark.exists()
