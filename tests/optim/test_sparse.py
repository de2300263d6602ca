"""Sparse gradients: the plain loop's result, at a cost that depends on the rows of a batch and not on the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tables import BATCH, OPTIMIZERS, UPDATES, WIDTH, loss, made, plain, train, words
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from traits import KINDS, PRIVATE_IN_PLACE, SLOTS_OF_GRADIENTS, WITHOUT_SLOTS
from warm_pythons import warm_python

import hogwild
from hogwild.optim.sparse import LARGEST_TABLES
from hogwild.rules import Hogwild, Locked, Ordered, Snapshot

by_optimizer = pytest.mark.parametrize("optimizer", ["sgd", "sparse adam", "adagrad"])

# --- the result


@by_optimizer
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
@pytest.mark.parametrize("update", WITHOUT_SLOTS)
def test_one_worker_leaves_the_bits_of_the_plain_loop(update: str, bag: bool, optimizer: str) -> None:
    expected = plain(made(bag=bag), OPTIMIZERS[optimizer])
    assert train(made(bag=bag), optimizer, update=update).digest == expected != hogwild.digest(made(bag=bag))


@by_optimizer
@pytest.mark.parametrize("update", PRIVATE_IN_PLACE)
def test_in_a_process(update: str, optimizer: str) -> None:
    expected = plain(made(), OPTIMIZERS[optimizer])
    assert train(made(), optimizer, update=update, kind="processes").digest == expected


@pytest.mark.parametrize("mixed", [False, True], ids=["sparse", "mixed"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("update", SLOTS_OF_GRADIENTS)
def test_rules_that_share_dense_gradients_come_to_the_same(update: str, optimizer: str, mixed: bool) -> None:
    """Rows that come twice are added up before the step, so the last bits differ from those of a sparse step, and Adam
    can make it too."""
    model, dense, expected = made(), made(), made()
    for each in (model, dense, expected):
        each.head.requires_grad_(mixed)
    expected.table.sparse = optimizer != "adam"
    train(model, optimizer, update=update, micro_batches=1)
    assert hogwild.digest(model) == plain(dense, OPTIMIZERS[optimizer], update)
    plain(expected, OPTIMIZERS[optimizer])
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)


@by_optimizer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", PRIVATE_IN_PLACE)
def test_two_workers_learn(update: str, kind: str, optimizer: str) -> None:
    run = train(made(), optimizer, update=update, kind=kind, workers=2, updates=400)
    assert run.updates == 400
    assert run.loss < 0.9 * run.journal["loss"][:20].mean()


def test_a_sparse_and_a_dense_gradient_in_one_model() -> None:
    def mixed() -> nn.Module:
        return made().requires_grad_(True)

    for optimizer in ("sgd", "adagrad"):
        assert train(mixed(), optimizer).digest == plain(mixed(), OPTIMIZERS[optimizer])


@by_optimizer
def test_clipping_is_that_of_the_dense_gradient(optimizer: str) -> None:
    """torch's own clipping takes no sparse gradients, so a hook on the table clips for the reference."""
    norm = 0.02

    def clipped(gradient: Tensor) -> Tensor:
        total = gradient.to_dense().norm()
        assert total > norm
        return gradient.coalesce() * min(1.0, norm / (total.item() + 1e-6))

    model, expected = made(), made()
    train(model, optimizer, clip_grad_norm=norm)
    expected.table.weight.register_hook(clipped)
    plain(expected, OPTIMIZERS[optimizer])
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_does_not_reach_the_table(value: float) -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 3:
            model.table.weight.register_hook(lambda gradient: gradient * value)
        return loss(model, batch)

    model = made()
    with pytest.raises(hogwild.NonFiniteError, match="update 3"):
        hogwild.train(
            model, words(), broken, optimizer=OPTIMIZERS["sgd"], workers=1, kind="threads", updates=9, batch_size=BATCH
        )
    assert torch.isfinite(model.table.weight).all()


def test_a_loop_of_ones_own() -> None:
    x, y = words()

    def work(worker: hogwild.Worker) -> None:
        schedule = hogwild.Schedule(len(x), BATCH)
        while (update := worker.claim()) is not None:
            replica, rows = worker.read(update), schedule.indices(update)
            value = loss(replica, (x[rows], y[rows]))
            worker.commit(update, torch.autograd.grad(value, [replica.table.weight]), value.item())

    for optimizer in ("sgd", "sparse adam"):
        model = made()
        hogwild.launch(work, model, optimizer=OPTIMIZERS[optimizer], updates=UPDATES, workers=1, kind="threads")
        assert hogwild.digest(model) == plain(made(), OPTIMIZERS[optimizer])


# --- the cost

BIG = 20_000  # rows
MAY_SEE_THE_TABLE = {
    "aten.embedding.default",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.slice.Tensor",  # a view of some rows
    "aten.view.default",
    "aten.view.dtype",
    "aten.as_strided.default",
    "aten.add_.Tensor",  # of a sparse tensor: touches the rows that it names
    "aten.sparse_mask.default",  # likewise
    "aten.lift_fresh.default",
    "aten.index_select.default",  # the rows that it names
    "aten.index_select.out",  # likewise
    "aten.index_copy_.default",  # likewise
}


class Watch(TorchDispatchMode):
    """Notes every operation that is given the whole table, or makes a tensor of its size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = str(function)
        given = [value for value in args if isinstance(value, Tensor)]
        sparse = any(value.is_sparse for value in given)
        if any(map(whole, given)) and (name not in MAY_SEE_THE_TABLE or (name == "aten.add_.Tensor" and not sparse)):
            self.seen.append(f"{name} is given the table")
        places = {value.untyped_storage().data_ptr() for value in given if not value.is_sparse}
        for value in made if isinstance(made, tuple | list) else [made]:
            if isinstance(value, Tensor) and whole(value) and value.untyped_storage().data_ptr() not in places:
                self.seen.append(f"{name} makes a table")
        return made


def whole(value: Tensor) -> bool:
    return not value.is_sparse and value.numel() >= BIG * WIDTH // 2


class Watched:
    """A rule whose gradient and commit are watched."""

    watch: Watch
    commits = 0
    unseen = 0  # commits before those that are watched

    def gradient(self, *args: Any) -> Any:
        with self.watch:
            return super().gradient(*args)  # type: ignore[misc]

    def commit(self, *args: Any) -> Any:
        type(self).commits += 1
        with self.watch if self.commits > self.unseen else nullcontext():
            return super().commit(*args)  # type: ignore[misc]


@contextmanager
def watched(rule: type[hogwild.Rule], first: int = 0) -> Iterator[Any]:
    """A rule of that kind, and what it did from commit `first` on."""

    class Mine(Watched, rule):  # type: ignore[valid-type, misc]
        watch = Watch()
        unseen = first

    yield Mine
    assert Mine.commits == UPDATES


@by_optimizer
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
@pytest.mark.parametrize("rule", [Hogwild, Locked])
def test_no_update_looks_at_the_whole_table(
    rule: type[hogwild.Rule], bag: bool, clip: float | None, optimizer: str
) -> None:
    with watched(rule) as mine:
        train(made(BIG, bag=bag), optimizer, update=mine(), data=words(BIG), clip_grad_norm=clip)
    assert mine.watch.seen == []


@by_optimizer
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("rule", [Snapshot, partial(Ordered, 2)])
def test_a_version_is_made_without_the_whole_table(rule: Any, clip: float | None, optimizer: str) -> None:
    """A digest, now and then, is of all of it."""
    kind, arguments = (rule.func, rule.args) if isinstance(rule, partial) else (rule, ())
    with watched(kind) as mine:
        train(made(BIG), optimizer, update=mine(*arguments), data=words(BIG), clip_grad_norm=clip)
    assert mine.watch.seen == []


def test_the_watch_sees_a_dense_gradient() -> None:
    model = made(BIG)
    model.table.sparse = False
    with watched(Hogwild) as mine:
        train(model, update=mine(), data=words(BIG))
    assert len(mine.watch.seen) >= UPDATES


MEMORY = """
import torch, hogwild
from functools import partial
from pathlib import Path
def peak():  # kB; not ru_maxrss, which begins with that of whoever started the program
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
rows, width = {rows}, 64
x = torch.randint(rows, (256, 8))
def train(rows):
    model = torch.nn.Embedding(rows, width, sparse=True)
    torch.manual_seed(0)
    before = peak()
    hogwild.train(model, x % rows, lambda m, b: m(b).square().mean(), optimizer={optimizer}, update="hogwild",
                  kind="threads", workers=1, updates=20, batch_size=16)
    return (peak() - before) * 1024 / (4 * rows * width)
train(1000)
print(train(rows))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("optimizer", "tables"),
    [
        ("partial(torch.optim.SGD, lr=0.1)", 2),
        ("partial(torch.optim.SparseAdam, lr=0.1)", 2),
        ("partial(torch.optim.Adagrad, lr=0.1)", 3),
    ],
)
def test_a_run_holds_the_slot_and_the_result_and_no_other_table(optimizer: str, tables: int, tmp_path: Path) -> None:
    """The slot and the run's own copy of the final state; Adagrad's state is a table too, which its constructor
    fills."""
    made = warm_python(["-c", MEMORY.format(rows=500_000, optimizer=optimizer)], tmp_path)
    assert made.returncode == 0, made.stderr
    assert float(made.stdout) < tables + 0.3


# --- what is refused, before the run


def large() -> nn.Module:
    return made(LARGEST_TABLES // (4 * WIDTH) + 1)


@pytest.mark.parametrize("update", SLOTS_OF_GRADIENTS)
def test_rules_that_touch_whole_tables_refuse_large_ones(update: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=rf"^{update} .*table\.weight.*'hogwild' and 'locked'") as refusal:
        train(large(), update=update)
    assert "\n" not in str(refusal.value)
    train(made(LARGEST_TABLES // (4 * WIDTH)), update=update, updates=1, micro_batches=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SLOTS_OF_GRADIENTS)
def test_an_optimizer_of_sparse_gradients_is_refused_where_they_are_made_dense(update: str, kind: str) -> None:
    model = made()
    before = hogwild.digest(model)
    with pytest.raises(hogwild.ArgumentError, match=rf"^{update} shares gradients.*SparseAdam.*'hogwild'"):
        train(model, "sparse adam", update=update, kind=kind)
    assert hogwild.digest(model) == before


def test_sparse_state_is_refused() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"SGD keeps 'momentum_buffer' as a sparse tensor.*SparseAdam"):
        hogwild.train(
            made(), words(), loss, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), updates=3, batch_size=BATCH
        )


class WithLayer(nn.Module):
    """Words, which have sparse gradients, and a layer, which has dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(self.words(rows))


@pytest.mark.parametrize(
    ("optimizer", "why"), [("Adam", "step a sparse gradient"), ("SparseAdam", "step a dense gradient")]
)
def test_an_optimizer_without_such_gradients_is_refused_with_those_that_have_both(optimizer: str, why: str) -> None:
    def squared(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    def trained(optimizer: Any) -> hogwild.Run:
        return hogwild.train(WithLayer(), torch.arange(20), squared, optimizer=optimizer, updates=3, batch_size=5)

    with pytest.raises(hogwild.ArgumentError, match=rf"{optimizer} cannot {why}.*; Adagrad, and SGD without momentum"):
        trained(getattr(torch.optim, optimizer))
    assert trained(partial(torch.optim.Adagrad, lr=0.1)).updates == 3
    assert trained(partial(torch.optim.SGD, lr=0.1)).updates == 3


class Ragged:
    """A first batch of few words, and later ones that name more rows than a gradient slot has room for."""

    def __len__(self) -> int:
        return 12

    def batch(self, update, generator):
        return torch.randint(0, 10, (20_000 if update else 20,), generator=torch.Generator().manual_seed(update))


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=1e-3), partial(torch.optim.SparseAdam, lr=1e-3)])
def test_rows_that_a_slot_has_no_room_for_are_stepped_alike_wherever_they_wait(optimizer):
    def train(workers, recheck):
        torch.manual_seed(0)
        return hogwild.train(
            nn.Embedding(10, 3, sparse=True),
            Ragged(),
            lambda model, words: model(words).square().mean() + model(words).sin().mean(),
            optimizer=optimizer,
            update="ordered",
            staleness=2,
            workers=workers,
            kind="threads",
            epochs=1,
            recheck=recheck,
            compensation="none",
        )

    alone = train(1, 0.0)
    assert alone.digest == train(3, 0.0).digest == train(3, 1.0).digest
    assert train(1, 1.0).rechecked == 12
