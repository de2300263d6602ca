"""word2vec, likes and knowledge graphs: one digest with any number and kind of workers, whoever was killed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

pytest.importorskip("numba")

from hogwild.experiments import bpr, kg, word2vec

import hogwild
from hogwild.experiment import Problem
from hogwild.testing import Fault, Hook, PlantedFault, planted

BUILT = {"word2vec": word2vec.build, "bpr": bpr.build, "kg": kg.build}
SETTINGS = {"update": "ordered", "staleness": 3, "updates": 20, "recheck": 0.1}


def trained(problem: Problem, workers: int, kind: str) -> hogwild.Run:
    data = replace(problem.data, lr=0.05)
    return hogwild.train_kernel(deepcopy(problem.model), data, **SETTINGS, workers=workers, kind=kind)


@pytest.mark.parametrize(
    ("name", "workers", "hook"),
    [("kg", 1, Hook.LOGGED), ("bpr", 2, Hook.COMMITTING), ("word2vec", 4, Hook.WRITING)],
)
def test_one_digest_for_every_crew_whoever_was_killed(name: str, workers: int, hook: Hook) -> None:
    """Which kernel it is makes no difference to where a worker can be killed, nor to what follows: each sees another
    kill, in a crew of another size."""
    problem = BUILT[name](0, None, width=16)
    digests = {trained(problem, of_threads, "threads").digest for of_threads in (1, 2, 4)}
    with planted(PlantedFault(Fault.KILL, hook, 7)):
        run = trained(problem, workers, "processes")
    assert len(run.failures) == 1
    assert digests == {run.digest}
    assert hogwild.digest(problem.model) not in digests
