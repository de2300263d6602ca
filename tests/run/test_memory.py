"""Shared memory is what docs/rules.md states: so many copies of parameters, optimizer state and gradients."""

from __future__ import annotations

import os

import problems
import pytest
import torch
from torch import nn
from traits import NAMES

from hogwild.shared.words import Hook
from hogwild.testing import planted

SIZE = 250_000  # elements; small things beside them do not count
BESIDE = 1 << 18  # bytes: journal, words, seals
WORKERS, STALENESS, MICRO_BATCHES = 2, 2, 4

STATED = {  # copies of the parameters, of the optimizer's state, of a gradient
    "hogwild": (1, 1, 0),
    "locked": (1, 1, 0),
    "racing": (1, 1, 1),
    "snapshot": (WORKERS + 1, 2, 0),
    "ordered": (STALENESS + 2, 2, STALENESS + 1),
    "sync": (2, 2, MICRO_BATCHES),
}


class Looks:
    """Notes the bytes of the arena, and those of them that were ever touched."""

    def __init__(self):
        self.reserved = self.touched = 0

    def __call__(self, hook, seat):
        if hook is Hook.COMMITTING:
            self.reserved = seat.state.arena.nbytes
            self.touched = 512 * os.fstat(seat.state.arena.descriptor).st_blocks


@pytest.mark.parametrize(("optimizer", "state"), [(problems.SGD, 0), (problems.MOMENTUM, 1), (problems.ADAM, 2)])
@pytest.mark.parametrize("update", NAMES)
def test_shared_memory_is_what_is_stated(update, optimizer, state):
    looks = Looks()
    torch.manual_seed(0)
    with planted(looks):
        problems.train(
            nn.Linear(250, SIZE // 250),
            data=(torch.randn(64, 250), torch.randint(0, 10, (64,))),
            optimizer=optimizer,
            update=update,
            updates=30,
            workers=WORKERS,
            staleness=STALENESS,
            compensation="none",
            micro_batches=MICRO_BATCHES,
            recheck=0,
        )
    slots, states, gradients = STATED[update]
    elements = SIZE + SIZE // 250
    stated = 4 * elements * (slots + states * state + gradients)
    for_evaluation = 4 * elements
    assert stated + for_evaluation <= looks.reserved < stated + for_evaluation + BESIDE
    assert looks.touched < stated + BESIDE, "the copy for evaluations is touched by none"


def test_every_rule_states_what_it_needs():
    assert STATED.keys() == set(NAMES)
