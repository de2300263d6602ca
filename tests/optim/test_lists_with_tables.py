"""Tables under one optimizer and the layers above them under another: rows are stepped, to the plain loop's bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tables
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Muon, Optimizer, RMSprop, SparseAdam
from traits import KINDS, SAME_BITS, WITHOUT_SLOTS

import hogwild
from hogwild.optim import sparse
from hogwild.optim.sparse import LARGEST_TABLES
from hogwild.reference import train_serially


class Tower(nn.Module):
    """A table with sparse gradients under a layer, which has dense ones."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, tables.WIDTH, sparse=True)
        self.head = nn.Linear(tables.WIDTH, tables.CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1))


def tower(rows: int = tables.ROWS) -> nn.Module:
    torch.manual_seed(0)
    return Tower(rows)


def table_and_head(named: Any, table: Any = SparseAdam, head: Any = Adam) -> list[Optimizer]:
    rows = [parameter for name, parameter in named if name.startswith("table")]
    rest = [parameter for name, parameter in named if not name.startswith("table")]
    return [table(rows, lr=0.1), head(rest, lr=0.01)]


def train_tower(update: str, rows: int = tables.ROWS, **arguments: Any) -> hogwild.Run:
    settings = {"optimizer": table_and_head, "kind": "threads", "workers": 1, "staleness": 0, "micro_batches": 1}
    settings |= {"updates": tables.UPDATES, "batch_size": tables.BATCH}
    return hogwild.train(tower(rows), tables.words(rows), tables.loss, update=update, **settings | arguments)


@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_a_table_has_sparse_adam_and_the_layer_above_it_adam(update: str) -> None:
    model = tower()
    settings = {"updates": tables.UPDATES, "batch_size": tables.BATCH}
    losses = train_serially(model, tables.words(), tables.loss, optimizer=table_and_head, **settings)
    assert train_tower(update).digest == hogwild.digest(model)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("update", SAME_BITS)
def test_stale_rows_have_the_same_bits_whoever_steps(update: str) -> None:
    settings = {"staleness": 2, "micro_batches": 3}
    digests = {
        train_tower(update, **settings | {"workers": workers, "kind": kind}).digest
        for workers, kind in ((1, "threads"), *((3, kind) for kind in KINDS))
    }
    assert len(digests) == 1


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_loop_of_ones_own(update: str) -> None:
    x, y = tables.words()
    chosen = [torch.arange(16) + 16 * (b % 12) for b in range(tables.UPDATES)]

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica, rows = worker.read(ticket), chosen[ticket.batch % len(chosen)]
            value = tables.loss(replica, (x[rows], y[rows]))
            worker.commit(ticket, torch.autograd.grad(value, list(replica.parameters())), value.item())

    settings = {"updates": tables.UPDATES, "update": update, "micro_batches": 3, "staleness": 2, "kind": "threads"}
    run = partial(hogwild.launch, work, optimizer=table_and_head, **settings)
    digests = {run(model=tower(), workers=workers).digest for workers in (1, 3)}
    assert len(digests) == 1 and hogwild.digest(tower()) not in digests


def test_a_large_table_has_one_copy_where_all_steps_are_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's is torch's own, made on copies of whole tables, and so refused."""
    monkeypatch.setattr(sparse, "LARGEST_TABLES", 1 << 20)
    rows = sparse.LARGEST_TABLES // (4 * tables.WIDTH) + 1
    assert train_tower("ordered", rows, updates=2).updates == 2
    with_muon = partial(table_and_head, head=lambda rest, lr: Muon(rest[:1], lr=lr))
    with (
        pytest.warns(UserWarning, match="not trained"),
        pytest.raises(hogwild.ArgumentError, match="several copies of every table beside Muon, and"),
    ):
        train_tower("ordered", rows, updates=2, optimizer=with_muon)


def test_a_table_under_an_optimizer_that_steps_none_is_refused_with_what_would() -> None:
    swapped = partial(table_and_head, table=Adam, head=SparseAdam)
    with pytest.raises(hogwild.ArgumentError, match="Adam cannot step a sparse gradient: .*a list has one for"):
        train_tower("ordered", optimizer=swapped)


class Pair(nn.Module):
    """Two tables under a layer. The gradient of the second, which nothing announces, may be sparse in some batches."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self._sparse = sparse
        self.table = nn.Embedding(tables.ROWS, tables.WIDTH, sparse=True)
        self.other = nn.Embedding(tables.ROWS, tables.WIDTH)
        self.head = nn.Linear(tables.WIDTH, tables.CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        sparse = self._sparse and int(words[0]) % 2 == 1
        return self.head(self.table(words) + nn.functional.embedding(words, self.other.weight, sparse=sparse))


@pytest.mark.parametrize("other", [partial(SGD, momentum=0.9), Adam, RMSprop])
@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_an_unannounced_sparse_gradient_is_made_dense_for_who_steps_no_rows(update: str, other: Any) -> None:
    """Momentum moves rows that a gradient does not name. Each row comes once, so both have the same sums."""

    def made(sparse: bool) -> nn.Module:
        torch.manual_seed(0)
        return Pair(sparse)

    def one_each(named: Any) -> list[Optimizer]:
        rows, others, *head = [parameter for _, parameter in named]
        return [SparseAdam([rows], lr=0.1), other([others], lr=0.05), SGD(head, lr=0.1)]

    data = torch.arange(48), torch.arange(48) % 3
    settings = {"updates": 12, "batch_size": 8}
    expected = made(sparse=False)
    train_serially(expected, data, tables.loss, optimizer=one_each, **settings)
    settings |= {"kind": "threads", "workers": 1, "staleness": 0, "micro_batches": 1}
    run = hogwild.train(made(sparse=True), data, tables.loss, optimizer=one_each, update=update, **settings)
    assert run.digest == hogwild.digest(expected)


class Tied(nn.Module):
    """A table with `sparse=True` that is the last layer's weight, too: its gradient is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(tables.ROWS, 8, sparse=True), nn.Linear(8, 8)

    def forward(self, words: Tensor) -> Tensor:
        return self.middle(self.table(words).mean(1)) @ self.table.weight.T


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_table_that_says_it_is_sparse_and_is_not_may_have_any(update: str) -> None:
    def optimizers(named: Any) -> list[Optimizer]:
        return [Adam([named[0][1]], lr=0.01), SGD([one for _, one in named[1:]], lr=0.1)]

    settings = {"updates": 9, "batch_size": 16}
    torch.manual_seed(0)
    expected, model = Tied(), Tied()
    model.load_state_dict(expected.state_dict())
    train_serially(expected, tables.words(), tables.loss, optimizer=optimizers, **settings)
    settings |= {"update": update, "workers": 1, "staleness": 0, "kind": "threads"}
    run = hogwild.train(model, tables.words(), tables.loss, optimizer=optimizers, **settings)
    assert run.digest == hogwild.digest(expected)


class Undeclared(nn.Module):
    """Rows of a parameter, by a function: no layer says that it is a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.ones(tables.ROWS, 8)), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(nn.functional.embedding(words, self.table, sparse=True).mean(1))


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_what_sparse_adam_holds_needs_no_other_declaration_in_a_loop(update: str) -> None:
    x, y = tables.words()

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica = worker.read(ticket)
            value = tables.loss(replica, (x[:16], y[:16]))
            worker.commit(ticket, torch.autograd.grad(value, list(replica.parameters())), value.item())

    settings = {"updates": 9, "update": update, "kind": "threads", "workers": 1, "optimizer": table_and_head}
    models = Undeclared(), Undeclared()
    models[1].load_state_dict(models[0].state_dict())
    one, other = (
        hogwild.launch(work, model, sparse=sparse, **settings)
        for model, sparse in zip(models, ((), ["table"]), strict=True)
    )
    assert one.digest == other.digest


@pytest.mark.parametrize("other", [Adam, RMSprop])
def test_a_sparse_gradient_where_no_table_was_seen_is_made_dense(other: Any) -> None:
    """The first batch has dense ones; the model is too large for one flat step."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = nn.Parameter(torch.ones(40_000, 8)), nn.Linear(8, 3)

        def forward(self, words: Tensor) -> Tensor:
            sparse = hogwild.worker_info().batch > 2 if hogwild.worker_info() else False
            return self.head(nn.functional.embedding(words, self.rows, sparse=sparse and self.turns).mean(1))

    def optimizers(named: Any) -> list[Optimizer]:
        return [other([named[0][1]], lr=0.01), SGD([one for _, one in named[1:]], lr=0.1)]

    digests = set()
    for turns in (False, True):
        torch.manual_seed(0)
        model = Late()
        model.turns = turns
        settings = {"updates": 6, "batch_size": 1, "update": "hogwild", "workers": 1, "kind": "threads"}
        digests.add(hogwild.train(model, tables.words(), tables.loss, optimizer=optimizers, **settings).digest)
    assert len(digests) == 1


def test_a_large_table_is_refused_where_another_parameter_keeps_its_rows_from_being_stepped_alone() -> None:
    class Complex(Tower):
        def __init__(self, rows: int) -> None:
            super().__init__(rows)
            self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, words: Tensor) -> Tensor:
            return super().forward(words) * self.turn.real

    rows = LARGEST_TABLES // (4 * tables.WIDTH) + 1
    settings = {"update": "ordered", "updates": 2, "batch_size": 16, "optimizer": table_and_head, "kind": "threads"}
    with pytest.raises(hogwild.ArgumentError, match=r"^ordered keeps several copies of every table, and table\.weight"):
        hogwild.train(Complex(rows), tables.words(rows), tables.loss, **settings)
