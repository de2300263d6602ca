"""A worker, its seat and its rule: nothing refers back to who uses it."""

from __future__ import annotations

import gc
import weakref

import problems
import pytest

import hogwild
from hogwild.rules.registry import NAMES
from hogwild.workers.loop import train_loop
from hogwild.workers.worker import Worker


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
