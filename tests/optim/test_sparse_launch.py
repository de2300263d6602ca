"""Sparse gradients that a loop of one's own commits: the guard and the cost of `train`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tables import BATCH, OPTIMIZERS, UPDATES, WIDTH, Bag, loss, made, train, words
from test_sparse import BIG, watched
from torch import Tensor, nn
from traits import KINDS, PRIVATE_IN_PLACE, SLOTS_OF_GRADIENTS, VERSIONED

import hogwild
from hogwild.optim.sparse import LARGEST_TABLES
from hogwild.rules import Ordered

LARGE = LARGEST_TABLES // (4 * WIDTH) + 1


class Unforeseen(nn.Module):
    """The same model; nobody can tell from it that gradients will be sparse."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.like = Bag(rows, bag=False)

    def forward(self, words: Tensor) -> Tensor:
        inner = nn.functional.embedding(words, self.like.table.weight, sparse=True)
        return self.like.head(inner.mean(1))


def unforeseen(rows: int = 50) -> nn.Module:
    model = Unforeseen(rows)
    model.like = made(rows)
    model.like.table.sparse = False
    return model


def launch(model: nn.Module, optimizer: str = "sgd", rows: int = 50, **arguments: Any) -> hogwild.Run:
    x, y = words(rows)

    def work(worker: hogwild.Worker) -> None:
        schedule = hogwild.Schedule(len(x), BATCH)
        while (ticket := worker.claim()) is not None:
            replica, chosen = worker.read(ticket), schedule.indices(ticket.batch)
            value = loss(replica, (x[chosen], y[chosen]))
            trained = [p for p in replica.parameters() if p.requires_grad]
            worker.commit(ticket, torch.autograd.grad(value, trained), value.item())

    settings = {"kind": "threads", "workers": 1, "updates": UPDATES, "staleness": 0, "micro_batches": 1}
    return hogwild.launch(work, model, optimizer=OPTIMIZERS[optimizer], **(settings | arguments))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SLOTS_OF_GRADIENTS)
def test_a_large_table_is_refused_before_the_run(update: str, kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        raise AssertionError("nobody was to work")

    with pytest.raises(hogwild.ArgumentError, match=rf"^{update} .*table\.weight.*'hogwild' and 'locked'"):
        hogwild.launch(work, made(LARGE), optimizer=OPTIMIZERS["sgd"], updates=2, update=update, kind=kind, workers=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SLOTS_OF_GRADIENTS)
def test_a_large_one_that_could_not_be_foreseen_is_refused_at_its_first_commit(update: str, kind: str) -> None:
    model = unforeseen(LARGE)
    with pytest.raises(hogwild.ArgumentError, match=rf"^{update} .*table\.weight.*'hogwild' and 'locked'"):
        launch(model, rows=LARGE, update=update, kind=kind, updates=2)


@pytest.mark.parametrize("update", [name for name in VERSIONED if name not in SLOTS_OF_GRADIENTS])
def test_one_that_could_not_be_foreseen_is_not_copied_in_silence(update: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=rf"{update} keeps.*sparse=\['like\.table\.weight'\]"):
        launch(unforeseen(), update=update)
    assert launch(unforeseen(), update=update, sparse=["like.table.weight"]).updates == UPDATES


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "sparse adam"])
def test_a_version_is_made_without_the_whole_table(optimizer: str) -> None:
    with watched(Ordered) as mine:
        launch(made(BIG), optimizer, rows=BIG, update=mine(2))
    assert mine.watch.seen == []


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "sparse adam"])
@pytest.mark.parametrize("update", [*PRIVATE_IN_PLACE, "ordered"])
def test_the_bits_are_those_of_train(update: str, optimizer: str) -> None:
    one, other = made().requires_grad_(optimizer != "sparse adam"), made().requires_grad_(optimizer != "sparse adam")
    for model in (one, other):
        model.table.requires_grad_(True)
    assert launch(one, optimizer, update=update).digest == train(other, optimizer, update=update).digest


def test_what_the_optimizer_could_not_step_by_rows_is_left_as_it_was() -> None:
    """A loop may well make its gradients dense, for an optimizer that takes no others."""
    x, y = words()

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            (gradient,) = torch.autograd.grad(loss(replica, (x, y)), [replica.table.weight])
            worker.commit(ticket, [gradient.to_dense()])

    run = hogwild.launch(work, made(), optimizer=OPTIMIZERS["adam"], updates=3, update="ordered", kind="threads")
    assert run.updates == 3
