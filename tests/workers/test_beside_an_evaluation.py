"""The parent evaluates on the caller's model, and draws, while worker threads train: neither may reach the training."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import problems
import pytest
import torch
from crews import controls_of_runs
from side_by_side import within
from torch import nn
from traits import SAME_BITS

import hogwild
from hogwild.data import seeding
from hogwild.shared.words import LOOKING, Field
from hogwild.testing import Hook, PlantedError, planted
from hogwild.workers.threads import ThreadTeam

PATIENCE = 60.0  # seconds for something that has to happen


class SlowToCopy(nn.Linear):
    """Counts the copies made in threads other than the main one; the third takes as long as it takes to meet an
    evaluation."""

    copies: list[bool] = []  # noqa: RUF012
    evaluating = threading.Event()

    def __deepcopy__(self, memo):
        if problems.in_worker_thread():
            assert len(self.copies) < 2 or self.evaluating.wait(PATIENCE)
            self.copies.append(self.training)
        new = type(self).__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


def test_a_thread_that_is_replaced_during_an_evaluation_trains_in_training_mode(monkeypatch):
    SlowToCopy.copies.clear()
    SlowToCopy.evaluating.clear()
    modes, raised, started, start = set(), threading.Event(), [], ThreadTeam.start

    def loss(model, batch):
        modes.add(model.training)
        return problems.cross_entropy(model, batch)

    def fault(hook, seat):
        if hook is Hook.COMMITTING and seat.ticket > 10 and not raised.is_set():
            raised.set()
            raise PlantedError("once")

    def starts(team, index):
        start(team, index)
        started.append(index)

    def evaluate(model):
        model.eval()
        if len(started) == 3:
            SlowToCopy.evaluating.set()
            within(PATIENCE, lambda: len(SlowToCopy.copies) == 3)
        return {"seen": 1.0}

    monkeypatch.setattr(ThreadTeam, "start", starts)
    with planted(fault):
        run = problems.train(
            SlowToCopy(8, 3), update="hogwild", kind="threads", workers=2, updates=40, loss=loss,
            evaluate=evaluate, evaluate_every=1,
        )  # fmt: skip
    assert len(run.failures) == 1 and len(SlowToCopy.copies) == 3, "two workers, and the one that replaced"
    assert modes == {True} and SlowToCopy.copies == [True] * 3


class Overlapping:
    """An evaluation that draws once update 6 is being computed; the first waits until that loss is there."""

    def __init__(self) -> None:
        self.losses = 0
        self.counting = threading.Lock()
        self.computing, self.drawn, self.computed = (threading.Event() for _ in range(3))

    def loss(self, model, batch):
        if hogwild.worker_info().update == 6:
            self.computing.set()
            assert self.drawn.wait(PATIENCE)
        value = problems.cross_entropy(model, batch)
        with self.counting:
            self.losses += 1
        if hogwild.worker_info().update == 6:
            self.computed.set()
        hogwild.worker_info().log(number=self.losses)
        return value

    def evaluate(self, model):
        assert self.computing.wait(PATIENCE)
        torch.rand(3)
        self.drawn.set()
        assert self.computed.wait(PATIENCE), "no loss is computed while a version is evaluated"
        return {"seen": 1.0}


@pytest.mark.parametrize("update", SAME_BITS)
def test_an_evaluation_that_draws_neither_fails_threads_nor_changes_their_bits(update):
    settings = {"update": update, "kind": "threads", "workers": 2, "staleness": 3, "updates": 24}
    beside = Overlapping()
    run = problems.train(problems.conv_bn(), loss=beside.loss, evaluate=beside.evaluate, evaluate_every=4, **settings)
    assert run.digest == problems.train(problems.conv_bn(), **settings).digest
    computed = run.updates * (2 if update == "sync" else 1)
    assert beside.losses > computed + 1, "what was computed meanwhile is computed again"  # 1: the dry run
    assert [row["batch"] for row in run.logged] == [*range(computed)], "what was logged meanwhile does not count"


class DrawsOnce(nn.Module):
    """Draws at one update, while a version is evaluated."""

    evaluating, drawn = threading.Event(), threading.Event()
    after: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.net = problems.mlp()

    def forward(self, x):
        info = hogwild.worker_info()
        if info is not None and info.update == 9:
            assert self.evaluating.wait(PATIENCE)
            x = x + torch.rand_like(x)
            self.drawn.set()
            self.after()
        return self.net(x)


def test_a_draw_in_the_training_is_refused_beside_an_evaluation_that_draws(monkeypatch):
    DrawsOnce.evaluating.clear()
    DrawsOnce.drawn.clear()
    controls = controls_of_runs(monkeypatch)

    def looks_at_what_was_drawn():
        rows = [controls[-1].row(worker) for worker in range(2)]
        looks = any(row[Field.TICKET] == 9 and row[Field.WAITING] == LOOKING for row in rows)
        return DrawsOnce.drawn.is_set() and looks

    def evaluate(model):
        torch.rand(3)
        DrawsOnce.evaluating.set()
        within(PATIENCE, looks_at_what_was_drawn)
        return {"seen": 1.0}

    with pytest.raises(hogwild.NotReproducible, match=r"was drawn from by update ([6-9]|1[0-2]) or one that ran"):
        problems.train(
            DrawsOnce(), update="ordered", staleness=3, kind="threads", workers=2, updates=24,
            evaluate=evaluate, evaluate_every=6,
        )  # fmt: skip


def test_a_draw_is_refused_though_the_evaluation_has_put_back_what_it_moved(monkeypatch):
    """Before the update is over that drew: the generators then stand as before it."""
    DrawsOnce.evaluating.clear()
    DrawsOnce.drawn.clear()
    ended = seeding._lending.ended

    def after():
        within(PATIENCE, lambda: seeding._lending.ended > ended)

    def evaluate(model):
        nonlocal ended
        ended = seeding._lending.ended
        torch.rand(3)
        DrawsOnce.evaluating.set()
        assert DrawsOnce.drawn.wait(PATIENCE)
        return {"seen": 1.0}

    monkeypatch.setattr(DrawsOnce, "after", staticmethod(after))
    with pytest.raises(hogwild.NotReproducible, match="was drawn from by update"):
        problems.train(
            DrawsOnce(), update="ordered", staleness=3, kind="threads", workers=2, updates=24,
            evaluate=evaluate, evaluate_every=6,
        )  # fmt: skip


@pytest.mark.parametrize("update", SAME_BITS)
def test_what_a_loss_raises_is_told_though_it_drew_before(update):
    def loss(model, batch):
        info = hogwild.worker_info()
        if info is not None and info.update == 7:
            torch.rand(3)
            raise KeyError("mine")
        return problems.cross_entropy(model, batch)

    # one worker: another could tell of the draw before this one has raised
    settings = {"update": update, "kind": "threads", "workers": 1, "updates": 24, "on_worker_failure": "raise"}
    with pytest.raises(hogwild.WorkerError, match="raised KeyError at update 7 .*mine"):
        problems.train(loss=loss, **settings)
