"""Race damage: what a clean replay of a run's own log tells of it."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import ClassVar

import numpy as np
import problems
import pytest
from checks import check
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.checkpoint import checkpoint

from hogwild.determinism.check import own_training
from hogwild.determinism.damage import in_order, measure_damage
from hogwild.rules.hogwild import Hogwild
from hogwild.shared.journal import ROW
from hogwild.testing import Hook, planted


def test_one_worker_in_place_has_no_race_damage():
    runs = [problems.train(update="locked", workers=1, updates=30) for _ in range(2)]
    rows, corrected = in_order(runs[0].journal)
    assert corrected == 0
    assert rows["update"].tolist() == list(range(30))


def test_damage_of_a_rule_that_loses_updates_is_seen_and_of_one_that_does_not_is_nil():
    class Drops(Hogwild):
        name: ClassVar[str] = "drops"

        def _apply(self, update, gradient, gathered):
            before = [flat.clone() for flat in self.state.slots[0].flats]
            super()._apply(update, gradient, gathered)
            if update % 10 == 9:
                for flat, value in zip(self.state.slots[0].flats, before, strict=True):
                    flat.copy_(value)

    def damage(rule):
        own = own_training(
            problems.mlp(), problems.data(), problems.cross_entropy,
            optimizer=problems.SGD, update=rule, workers=1, kind="threads", updates=40, batch_size=16,
        )  # fmt: skip
        return measure_damage(own, [own.repeat(), own.repeat()])

    clean, torn = damage("locked"), damage(Drops())
    assert (clean.racing, clean.scheduling, clean.log, clean.corrected) == (0.0, 0.0, 0.0, 0.0)
    assert torn.racing > 1e-3  # the log says that those updates were made, and they were not
    assert torn.scheduling == 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 4},  # the last update has one batch
        {"on_nonfinite": "skip", "lr_schedule": partial(CosineAnnealingLR, T_max=26)},
    ],
)
def test_a_replay_is_of_the_length_of_the_run(settings):
    """Its last update has as many batches, and updates after those that were skipped have their rates."""
    x, y = problems.data()
    x = x.clone()
    x[::100] = float("nan") if "on_nonfinite" in settings else 1.0
    own = own_training(
        problems.mlp(), (x, y), problems.cross_entropy,
        optimizer=problems.SGD, update="locked", workers=1, kind="threads", epochs=1, batch_size=16, **settings,
    )  # fmt: skip
    runs = [own.repeat(), own.repeat()]
    assert runs[0].run.updates < 13
    assert measure_damage(own, runs).racing == 0.0


def test_a_journal_in_place_is_put_in_order():
    rows = np.zeros(4, ROW)
    rows["update"], rows["version"], rows["version_read"] = [0, 1, 2, 3], [1, 2, 2, 4], [0, 0, 3, 1]
    ordered, corrected = in_order(rows)
    assert ordered["version"].tolist() == [1, 2, 3, 4]
    assert ordered["version_read"].tolist() == [0, 0, 2, 1]
    assert corrected == 0.25


def test_a_worker_that_was_late_at_the_start_is_no_damage():
    """What it read is as old as the window is long, and under `locked` its write mixed with none."""

    has_read = threading.Event()

    def late(hook, seat):
        deadline = time.monotonic() + 60
        if hook is Hook.COMPUTING and seat.ticket == 1:
            assert has_read.wait(60), "the first worker never computed its update"
        if hook is Hook.COMMITTING and seat.ticket == 0:
            has_read.set()
        while hook is Hook.COMMITTING and seat.ticket == 0 and seat.control.commits() < 99:
            assert time.monotonic() < deadline, "the other worker never made its updates"
            time.sleep(1e-3)

    own = own_training(
        problems.mlp(), problems.data(), problems.cross_entropy,
        optimizer=problems.SGD, update="locked", workers=2, kind="threads", updates=100, batch_size=16,
    )  # fmt: skip
    runs = []
    for _ in range(2):
        has_read.clear()
        with planted(late):
            runs.append(own.repeat())
    assert all(run.run.journal["version_read"][99] == 0 for run in runs)
    assert measure_damage(own, runs).racing == 0.0


class Recomputed(nn.Module):
    """Its activations are computed again, in a way that only `backward()` can."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3)

    def forward(self, x):
        return checkpoint(self.last, self.first(x), use_reentrant=True)


@pytest.mark.parametrize("rule", [{"update": "hogwild"}, {"update": "locked", "gradient": "backward"}])
def test_gradients_are_taken_as_in_the_run(rule):
    verdict = check(Recomputed(), workers=1, updates=20, loss=Counting(), explain=True, **rule)
    assert not verdict.identical and verdict.damage and verdict.controls.one_ulp is not None
    assert verdict.sources[-1].note == "none, by PyTorch's own account"


class Counting:
    """A loss that is never twice the same."""

    calls: ClassVar[int] = 0

    def __call__(self, model, batch):
        type(self).calls += 1
        return problems.cross_entropy(model, batch) * (1 + 1e-7 * type(self).calls)

    def __deepcopy__(self, memo):
        return self


def test_a_stop_does_not_end_the_replays_of_a_damage():
    verdict = check(
        update="locked", workers=1, runs=2, updates=20, evaluate=problems.accuracy, evaluate_every=5,
        loss=Counting(), stop=lambda progress: progress.updates >= 15,
    )  # fmt: skip
    assert [run.updates for run in verdict.runs] == [15, 15]
    assert not verdict.identical
    assert all(damage.updates == 15 and damage.racing < 1e-3 for damage in verdict.damage)
