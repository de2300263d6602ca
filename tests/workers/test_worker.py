"""A worker, its seat and its rule: nothing refers back to who uses it."""

from __future__ import annotations

import gc
import time
import weakref
from functools import partial

import problems
import pytest
import torch
from torch import nn
from traits import KINDS, ONE_OF_EACH, VERSIONED

import hogwild
from hogwild.rules.registry import NAMES
from hogwild.shared.shards import cut_shards
from hogwild.testing import Hook, planted
from hogwild.workers.loop import train_loop
from hogwild.workers.worker import Worker

PATIENCE = 60.0  # seconds for something that has to happen


@pytest.mark.parametrize("update", NAMES)
def test_a_worker_goes_with_its_last_reference_and_not_with_the_garbage(update, monkeypatch):
    kept: dict[str, weakref.ref] = {}

    def work(worker: Worker) -> None:
        train_loop(worker)
        for name, value in {"worker": worker, "seat": worker.seat, "rule": worker.rule}.items():
            kept[name] = weakref.ref(value)

    monkeypatch.setattr("hogwild.run.training.train_loop", work)
    gc.disable()
    try:
        problems.train(update=update, workers=1, updates=4)
        alive = [name for name, reference in kept.items() if reference() is not None]
    finally:
        gc.enable()
    assert kept.keys() == {"worker", "seat", "rule"}
    assert not alive, f"kept by a circle: {alive}"


def test_a_loop_of_ones_own_may_reckon_with_its_ticket():
    seen: list[tuple[int, int, int, float]] = []

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            seen.append((ticket + 0, ticket.update, ticket.batch, ticket.share))
            replica = worker.read(ticket)
            worker.commit(ticket, [p.detach() * 0 for p in replica.parameters()], 0.0)

    hogwild.launch(
        work,
        problems.mlp(),
        optimizer=problems.SGD,
        updates=2,
        update="sync",
        workers=1,
        micro_batches=2,
        kind="threads",
    )
    assert seen == [(0, 0, 0, 0.5), (1, 0, 1, 0.5), (2, 1, 2, 0.5), (3, 1, 3, 0.5)]


def _commits(worker, ticket):
    replica = worker.read(ticket)
    loss = replica(torch.ones(1, 2)).square().sum()
    worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), loss.item())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_who_leaves_with_a_ticket_leaves_it_to_the_others(update, kind):
    left = torch.zeros(1, dtype=torch.int64).share_memory_()

    def work(worker):
        while (ticket := worker.claim()) is not None:
            if worker.index == 0 and ticket >= 5 and left[0] == 0:  # once: where all have left it is replaced
                left[0] = 1
                return
            _commits(worker, ticket)

    sgd = partial(torch.optim.SGD, lr=0.01)
    run = hogwild.launch(work, nn.Linear(2, 1), optimizer=sgd, updates=60, update=update, kind=kind, workers=2)
    assert run.updates == 60 and not run.failures


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stays"])
@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_nobody_waits_for_who_claims_no_more(update, kind, most, leaves):
    """Of a table the rows are kept that the oldest version needs which somebody reads: who has no ticket reads none."""
    moved, ended = [0, time.monotonic()], torch.zeros(1, dtype=torch.int64).share_memory_()

    def work(worker):
        done = 0
        while (worker.index or done < most) and (ticket := worker.claim()) is not None:
            worker.read(ticket)
            rows = torch.tensor([ticket % 50])
            worker.commit(ticket, {"weight": (rows, worker.rows(ticket, "weight", rows))})
            done += 1
        ended[0] += worker.index
        while not (leaves or ended[0]):
            time.sleep(0.001)

    def give_up(progress):
        if progress.updates > moved[0]:
            moved[:] = progress.updates, time.monotonic()
        if time.monotonic() - moved[1] > PATIENCE:
            ended[0] = 1
            raise AssertionError(f"nothing is made after version {progress.updates}")

    sgd = partial(torch.optim.SGD, lr=0.01)
    settings = {"optimizer": sgd, "updates": 60, "update": update, "kind": kind, "workers": 2, "sparse": ["weight"]}
    assert hogwild.launch(work, nn.Embedding(50, 4), progress=give_up, **settings).updates == 60


def test_a_table_is_not_read_where_nobody_keeps_it():
    def work(worker):
        while (ticket := worker.claim()) is not None:
            worker.read(ticket)
            rows = torch.tensor([ticket % 50])
            worker.commit(ticket, {"weight": (rows, worker.rows(ticket, "weight", rows))})
            worker.read(ticket)

    sgd = partial(torch.optim.SGD, lr=0.01)
    settings = {"optimizer": sgd, "updates": 6, "update": "snapshot", "kind": "threads", "sparse": ["weight"]}
    with pytest.raises(hogwild.ArgumentError, match=r"ticket \d is read after it was committed"):
        hogwild.launch(work, nn.Embedding(50, 4), **settings)


def test_a_wait_within_a_wait_is_counted_once(monkeypatch):
    """Worker 1 waits for a version, makes the end of it meanwhile, and there waits until the one before is judged."""
    monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=16))

    def loss(model, batch):
        info = hogwild.worker_info()
        time.sleep(0.01 if info is not None and info.index == 0 else 0.0)
        return problems.cross_entropy(model, batch)

    def pause(hook, seat):
        if hook is Hook.STEPPING and seat.index == 1:
            time.sleep(0.005)

    def evaluate(model):
        time.sleep(0.05)
        return {"seen": 1.0}

    with planted(pause):
        run = problems.train(
            update="sync", workers=2, updates=12, loss=loss, evaluate=evaluate, evaluate_every=1, stop=lambda _: False
        )
    assert max(usage.waited_seconds for usage in run.workers) < run.seconds


@pytest.mark.parametrize("kind", KINDS)
def test_who_claims_before_it_commits_is_told(kind):
    def work(worker):
        while (ticket := worker.claim()) is not None:
            if ticket != 3:  # as where what was raised is passed over
                _commits(worker, ticket)

    sgd = partial(torch.optim.SGD, lr=0.01)
    with pytest.raises(hogwild.ArgumentError, match="called before ticket 3 was committed"):
        hogwild.launch(work, nn.Linear(2, 1), optimizer=sgd, updates=20, update="ordered", kind=kind)
