"""Row gradients: given by name as (rows, values), they leave the bits of the sparse gradients of autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tables import BATCH, CLASSES, OPTIMIZERS, UPDATES, WIDTH, made, plain, words
from torch import Tensor
from torch.nn import functional as F
from traits import KINDS, NAMES, SAME_BITS, WITHOUT_SLOTS

import hogwild
from hogwild.optim.plan import steps_rows
from hogwild.shared.layout import Layout

ROW_OPTIMIZERS = ["sgd", "sparse adam", "adagrad", "row adagrad"]
by_optimizer = pytest.mark.parametrize("optimizer", ROW_OPTIMIZERS)


def by_hand(table: Callable[[Tensor], Tensor], head: Any, x: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    """(loss, rows, their gradients) of `tables.loss` on a batch; `table` gives the values of rows."""
    rows = x.reshape(-1)
    values = table(rows).requires_grad_()
    with torch.enable_grad():
        value = F.cross_entropy(head(values.view(*x.shape, WIDTH).mean(1)), y)
        (gradient,) = torch.autograd.grad(value, [values])
    return value.item(), rows, gradient


def told(model: Any, batch: Any) -> tuple[float, dict[str, Any]]:
    """`tables.loss`, and its gradient by hand."""
    with torch.no_grad():
        value, rows, gradient = by_hand(lambda rows: F.embedding(rows, model.table.weight), model.head, *batch)
    return value, {"table.weight": (rows, gradient)}


def train(optimizer: str, **arguments: Any) -> hogwild.Run:
    settings = {
        "kind": "threads",
        "workers": 1,
        "updates": UPDATES,
        "batch_size": BATCH,
        "staleness": 0,
        "micro_batches": 1,
    }
    data = arguments.pop("data", words())
    model = arguments.pop("model", None) or made()
    return hogwild.train(model, data, told, optimizer=OPTIMIZERS[optimizer], **(settings | arguments))


def launch(optimizer: str, **arguments: Any) -> hogwild.Run:
    x, y = words()
    model = arguments.pop("model", None) or made()
    model.table.sparse = False  # nothing says that its gradients are rows, but `sparse`

    def work(worker: hogwild.Worker) -> None:
        schedule = hogwild.Schedule(len(x), BATCH)
        while (ticket := worker.claim()) is not None:
            chosen = schedule.indices(ticket.batch)
            table = partial(worker.rows, ticket, "table.weight")
            value, rows, gradient = by_hand(table, worker.replica.head, x[chosen], y[chosen])
            worker.commit(ticket, {"table.weight": (rows, gradient)}, value)

    settings = {"kind": "threads", "workers": 1, "updates": UPDATES, "staleness": 0, "micro_batches": 1}
    settings["sparse"] = ["table.weight"]
    return hogwild.launch(work, model, optimizer=OPTIMIZERS[optimizer], **(settings | arguments))


@by_optimizer
@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_a_loss_that_tells_its_rows_leaves_the_bits_of_the_plain_loop(update: str, optimizer: str) -> None:
    assert train(optimizer, update=update).digest == plain(made(), OPTIMIZERS[optimizer])


@by_optimizer
@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_a_loop_that_commits_rows_leaves_the_bits_of_the_plain_loop(update: str, optimizer: str) -> None:
    assert launch(optimizer, update=update).digest == plain(made(), OPTIMIZERS[optimizer])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_every_rule_takes_them(update: str, kind: str) -> None:
    assert train("sgd", update=update, kind=kind, workers=2, staleness=1, micro_batches=2).updates == UPDATES
    assert launch("sgd", update=update, kind=kind, workers=2, staleness=1, micro_batches=2).updates == UPDATES


@by_optimizer
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_loss_that_tells_its_rows_may_be_computed_by_anyone(update: str, optimizer: str) -> None:
    one, many = (train(optimizer, update=update, staleness=2, micro_batches=3, workers=n) for n in (1, 3))
    assert one.digest == many.digest


def sparse(rows: list[list[int]], form: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(rows), torch.ones(form), (50, WIDTH), check_invariants=False)


def test_dense_gradients_are_given_by_name_too_and_what_is_not_named_has_none() -> None:
    x, y = words()
    run_of = {}
    for named in (False, True):
        model = made().requires_grad_(True)

        def work(worker: hogwild.Worker, named: bool = named) -> None:
            while (ticket := worker.claim()) is not None:
                replica = worker.read(ticket)
                value = F.cross_entropy(replica(x), y)
                weight, bias = torch.autograd.grad(value, [replica.head.weight, replica.head.bias])
                given = {"head.bias": bias, "head.weight": weight} if named else [None, weight, bias]
                worker.commit(ticket, given)

        run_of[named] = hogwild.launch(work, model, optimizer=OPTIMIZERS["sgd"], updates=3, workers=1, kind="threads")
    assert run_of[True].digest == run_of[False].digest != hogwild.digest(made())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tables": (torch.tensor([0]), torch.zeros(1, WIDTH))}, r"gradient of tables.*trained.*table\.weight"),
        ({"table.weight": (torch.tensor([50]), torch.zeros(1, WIDTH))}, r"row 50 of table\.weight.*0 to 49"),
        ({"table.weight": (torch.tensor([-1, 3]), torch.zeros(2, WIDTH))}, r"row -1 of table\.weight"),
        ({"table.weight": (torch.tensor([0.5]), torch.zeros(1, WIDTH))}, r"rows of table\.weight are torch\.float32"),
        ({"table.weight": (torch.tensor([[1]]), torch.zeros(1, WIDTH))}, r"of shape \[1, 1\]; int64 of shape \[n\]"),
        ({"table.weight": (torch.tensor([1]), torch.zeros(2, WIDTH))}, r"values of 1 rows.*\[2, 8\].*\[1, 8\] works"),
        ({"table.weight": (torch.tensor([1]), torch.zeros(1, WIDTH).double())}, r"torch\.float64.*torch\.float32"),
        ({"table.weight": (torch.tensor([1]),)}, r"a tuple of 1; a table's is \(rows, values\)"),
        ({"table.weight": torch.zeros(3)}, r"gradient of table\.weight is torch\.float32 of shape \[3\]"),
        ({"table.weight": sparse([[50]], (1, WIDTH))}, r"row 50 of table\.weight.*0 to 49"),
        ([sparse([[2, -1]], (2, WIDTH))], r"row -1 of table\.weight"),
        ([sparse([[2], [WIDTH]], (1,))], r"row 8 of table\.weight, which has 8"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, message: str) -> None:
    model = made()
    before = hogwild.digest(model)

    def work(worker: hogwild.Worker) -> None:
        ticket = worker.claim()
        assert ticket is not None
        worker.read(ticket)
        with pytest.raises(hogwild.ArgumentError, match=message) as refusal:
            worker.commit(ticket, given)
        assert "\n" not in str(refusal.value)
        raise LookupError("as expected")

    with pytest.raises(hogwild.WorkerError, match="as expected"):
        hogwild.launch(
            work, model, optimizer=OPTIMIZERS["sgd"], updates=1, workers=1, kind="threads", on_worker_failure="raise"
        )
    assert hogwild.digest(model) == before


def test_rows_are_read_as_arrays_too_and_belong_to_who_reads_them() -> None:
    model, seen = made(), []

    def work(worker: hogwild.Worker) -> None:
        ticket = worker.claim()
        assert ticket is not None
        rows = worker.rows(ticket, "table.weight", np.array([3, 3, 0]))
        seen.append(rows.clone())
        rows.zero_()
        for wrong in (partial(worker.rows, ticket, "table", [0]), partial(worker.rows, ticket, "table.weight", [50])):
            with pytest.raises(hogwild.ArgumentError, match=r"table\.weight"):
                wrong()
        worker.commit(ticket, {})

    hogwild.launch(work, model, optimizer=OPTIMIZERS["sgd"], updates=1, workers=1, kind="threads", update="ordered")
    assert torch.equal(seen[0], made().table.weight[[3, 3, 0]])
    assert hogwild.digest(model) == hogwild.digest(made())


@pytest.mark.parametrize("update", ["ordered", "snapshot"])
def test_a_table_that_nothing_declared_is_refused(update: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=rf"table\.weight got.*{update}.*sparse=\['table\.weight'\]"):
        launch("sgd", update=update, sparse=())


def test_names_that_are_no_table_are_refused() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"sparse \['table'\] names table; .*table\.weight"):
        launch("sgd", sparse=["table"])
    with pytest.raises(hogwild.ArgumentError, match=r"Adam as it is set does not step single rows; SGD.*RowAdagrad"):
        launch("adam")


def test_row_adagrad_is_what_it_says() -> None:
    table = torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    optimizer = hogwild.RowAdagrad([table], lr=0.5, eps=0.1)
    expected, sums = table.detach().clone(), torch.zeros(4)
    for rows in ([1, 3], [1, 1, 0]):
        values = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(len(rows)))
        table.grad = torch.sparse_coo_tensor([rows], values, table.shape)
        whole = table.grad.to_dense()
        optimizer.step()
        sums += whole.square().mean(1)
        expected -= 0.5 * whole / (sums.sqrt() + 0.1).unsqueeze(1)
    torch.testing.assert_close(table.detach(), expected)
    assert optimizer.state[table]["sum"].shape == (4,)
    assert steps_rows(optimizer, Layout.of([("table", table)], [0]), frozenset({0}))
    with pytest.raises(hogwild.ArgumentError, match=r"lr -1 is negative"):
        hogwild.RowAdagrad([table], lr=-1)


def test_a_model_without_tables_can_have_row_adagrad() -> None:
    x, y = torch.randn(64, 5), torch.randint(CLASSES, (64,))
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    digests = set()
    for update in ("hogwild", "ordered"):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, CLASSES)
        settings = {"update": update, "updates": 9, "kind": "threads", "workers": 1, "staleness": 0}
        digests.add(hogwild.train(model, (x, y), loss, optimizer=OPTIMIZERS["row adagrad"], **settings).digest)
    assert len(digests) == 1
