"""The parent evaluates on the caller's model, and draws, while worker threads train: neither may reach the training."""

from __future__ import annotations

import copy
import threading
import time

import problems
import pytest
import torch
from torch import nn
from traits import SAME_BITS

import hogwild
from hogwild.testing import Hook, PlantedError, planted

PATIENCE = 10.0  # seconds for something that has to happen


class SlowToCopy(nn.Linear):
    """Counts the copies made in threads other than the main one; they take long enough to meet an evaluation."""

    copies: list[bool] = []  # noqa: RUF012

    def __deepcopy__(self, memo):
        if problems.in_worker_thread():
            time.sleep(0.05)
            self.copies.append(self.training)
        new = type(self).__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


def test_a_thread_that_is_replaced_during_an_evaluation_trains_in_training_mode():
    SlowToCopy.copies.clear()
    modes, raised = set(), threading.Event()

    def loss(model, batch):
        modes.add(model.training)
        return problems.cross_entropy(model, batch)

    def fault(hook, seat):
        if hook is Hook.COMMITTING and seat.ticket > 10 and not raised.is_set():
            raised.set()
            raise PlantedError("once")

    def evaluate(model):
        model.eval()
        if raised.is_set() and len(SlowToCopy.copies) < 3:
            time.sleep(0.1)
        return {"seen": 1.0}

    with planted(fault):
        run = problems.train(
            SlowToCopy(8, 3), update="hogwild", kind="threads", workers=2, updates=40, loss=loss,
            evaluate=evaluate, evaluate_every=1,
        )  # fmt: skip
    assert len(run.failures) == 1 and len(SlowToCopy.copies) == 3, "two workers, and the one that replaced"
    assert modes == {True} and SlowToCopy.copies == [True] * 3


class Overlapping:
    """An evaluation that draws once update 6 is being computed, and waits until a loss was computed after that."""

    def __init__(self) -> None:
        self.losses = 0
        self.overlapped = 0
        self.computing = threading.Event()
        self.drawn = threading.Event()

    def loss(self, model, batch):
        if hogwild.worker_info().update == 6:
            self.computing.set()
            assert self.drawn.wait(PATIENCE)
        self.losses += 1
        hogwild.worker_info().log(number=self.losses)
        return problems.cross_entropy(model, batch)

    def evaluate(self, model):
        assert self.computing.wait(PATIENCE)
        before = self.losses
        torch.rand(3)
        self.drawn.set()
        deadline = time.monotonic() + 0.5
        while self.losses == before and time.monotonic() < deadline:
            time.sleep(0.001)
        self.overlapped += self.losses > before
        time.sleep(0.02)
        return {"seen": 1.0}


@pytest.mark.parametrize("update", SAME_BITS)
def test_an_evaluation_that_draws_neither_fails_threads_nor_changes_their_bits(update):
    settings = {"update": update, "kind": "threads", "workers": 2, "staleness": 3, "updates": 24}
    beside = Overlapping()
    run = problems.train(problems.conv_bn(), loss=beside.loss, evaluate=beside.evaluate, evaluate_every=4, **settings)
    assert run.digest == problems.train(problems.conv_bn(), **settings).digest
    assert beside.overlapped, "no loss was computed while a version was evaluated"
    computed = run.updates * (2 if update == "sync" else 1)
    assert beside.losses > computed + 1, "what was computed meanwhile is computed again"  # 1: the dry run
    assert [row["batch"] for row in run.logged] == [*range(computed)], "what was logged meanwhile does not count"


class DrawsOnce(nn.Module):
    """Draws at one update, while a version is evaluated."""

    evaluating = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.net = problems.mlp()

    def forward(self, x):
        info = hogwild.worker_info()
        if info is not None and info.update == 9:
            assert self.evaluating.wait(PATIENCE)
            x = x + torch.rand_like(x)
        return self.net(x)


def test_a_draw_in_the_training_is_refused_beside_an_evaluation_that_draws():
    DrawsOnce.evaluating.clear()

    def evaluate(model):
        torch.rand(3)
        DrawsOnce.evaluating.set()
        time.sleep(0.2)
        return {"seen": 1.0}

    with pytest.raises(hogwild.NotReproducible, match=r"was drawn from by update ([6-9]|1[0-2]) or one that ran"):
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
