"""word2vec, likes and knowledge graphs: one digest with any number and kind of workers, whoever was killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("numba")

from hogwild.experiments import bpr, kg, word2vec

import hogwild
from hogwild.experiment import Problem
from hogwild.testing import Fault, Hook, PlantedFault, planted

BUILT = {"word2vec": word2vec.build, "bpr": bpr.build, "kg": kg.build}
SETTINGS = {"update": "ordered", "staleness": 3, "updates": 20, "recheck": 0.1}


def problem(name: str) -> Problem:
    made = BUILT[name](0, None, width=16)
    return replace(made, data=replace(made.data, lr=0.05))


def digest(name: str, **settings: object) -> str:
    one = problem(name)
    return hogwild.train_kernel(one.model, one.data, **SETTINGS, **settings).digest


@pytest.mark.parametrize("name", BUILT)
def test_one_digest_for_every_crew_whoever_was_killed(name: str) -> None:
    begun = hogwild.digest(problem(name).model)
    digests = {digest(name, workers=workers, kind="threads") for workers in (1, 2, 4)}
    for workers, hook in ((1, Hook.LOGGED), (2, Hook.COMMITTING), (4, Hook.WRITING)):
        with planted(PlantedFault(Fault.KILL, hook, 7)):
            one = problem(name)
            run = hogwild.train_kernel(one.model, one.data, **SETTINGS, workers=workers, kind="processes")
        assert len(run.failures) == 1
        digests.add(run.digest)
    assert len(digests) == 1
    assert begun not in digests
