"""A planted fault befalls one worker, also where several come to its hook at once."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from hogwild.testing import Fault, Hook, PlantedError, PlantedFault

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


def test_what_it_leaves_behind_goes_with_it():
    fault = PlantedFault(Fault.RAISE, Hook.COMPUTING, 3)
    mark = fault._mark
    mark.touch()
    assert fault.fired
    del fault
    assert not mark.exists()
