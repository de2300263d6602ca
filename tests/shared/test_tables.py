"""A row is read at its version, whoever died while writing it; and the run leaves the same bits."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import OPTIMIZERS, ROWS, loss, made, name_half, train, words
from torch import Tensor, nn
from traits import KINDS, SAME_BITS, VERSIONED

import hogwild
from hogwild.shared.arena import Arena
from hogwild.shared.layout import Layout
from hogwild.shared.optimizer_state import PARAMETER, Cell
from hogwild.shared.tables import RowTable, TableForm
from hogwild.shared.words import Hook, Word
from hogwild.testing import planted
from hogwild.workers.seat import WorkerSeat

FEW, LOGS = 6, 3
START, HALF, LOGGED, STORED, DONE = range(5)
BY_HAND = ["sgd", "sparse adam", "adagrad", "row adagrad"]
by_optimizer = pytest.mark.parametrize("optimizer", BY_HAND)

attempts = st.tuples(
    st.lists(st.integers(0, FEW - 1), max_size=4, unique=True).map(sorted),
    st.sampled_from([START, HALF, LOGGED, STORED, DONE, DONE, DONE, DONE]),
)


def a_table(logs: int = LOGS) -> RowTable:
    layout = Layout.of([("table", torch.zeros(FEW, 2))])
    form = TableForm.of(layout.entries[0], {"sum": Cell(torch.float32, (FEW,), (1,))})
    nbytes, used = RowTable.size(form, logs)
    assert used < nbytes
    return RowTable(form, logs, Arena(nbytes), 0, nullcontext)


def add(table: RowTable, index: Tensor, number: int) -> None:
    table.values[index] += 1 + number
    table.columns["sum"][index] += 1


@given(st.lists(attempts, max_size=40))
def test_each_version_that_may_be_read_is_what_it_was(program: list[tuple[list[int], int]]) -> None:
    """Versions are made and left half made, by updates of other rows; the last few of them can be read all along."""
    table, versions = a_table(), [(torch.zeros(FEW, 2), torch.zeros(FEW))]
    for number, (rows, until) in enumerate(program):
        made, index = len(versions), torch.tensor(rows, dtype=torch.int64)
        table.begin(made)
        before = table.newest.copy()
        if until >= HALF:
            table.log(made, index.repeat(2).flip(0))
        if until == HALF:
            name_half(table, before, rows)
        if until == LOGGED:
            add(table, index[: len(rows) // 2], number)
        if until >= STORED:
            add(table, index, number)
        if until == DONE:
            value, total = (tensor.clone() for tensor in versions[-1])
            value[index] += 1 + number
            total[index] += 1
            versions.append((value, total))
        for version in range(max(0, len(versions) - LOGS), len(versions)):
            value, total = versions[version]
            some = torch.tensor([3, 0, 0, 5])
            assert torch.equal(table.read(some, version), value[some])
            assert torch.equal(table.read(some, version, "sum"), total[some])
            copy = torch.empty(FEW, 2)
            table.copy_at(version, copy)
            assert torch.equal(copy, value)


def test_logs_that_are_put_back_lead_to_the_same_versions() -> None:
    table, again = a_table(), a_table()
    for version in range(1, 6):
        rows = torch.tensor([version % FEW, (version + 2) % FEW]).sort().values
        table.begin(version)
        table.log(version, rows)
        for column in table.columns.values():
            column[rows] = float(version)
    for key, column in again.columns.items():
        table.copy_at(5, column, key)
    for version in (4, 5):
        again.log_again(version, table.logged(version))
    for version in (3, 4, 5):
        rows = torch.arange(FEW)
        assert torch.equal(again.read(rows, version), table.read(rows, version))
    with pytest.raises(RuntimeError, match="version 1 of a table cannot be read any more"):
        table.read(torch.arange(FEW), 1)


@pytest.mark.parametrize("rows", [[1, FEW], [-1], [2, -1, 0]])
def test_rows_outside_are_named_by_nobody(rows: list[int]) -> None:
    table = a_table()
    table.begin(1)
    with pytest.raises(IndexError):
        table.log(1, torch.tensor(rows))
    assert not table.newest.any()
    assert not len(table.logged(1)["rows"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_rows_that_do_not_lie_one_after_the_other_are_read_at_their_version(dtype: torch.dtype) -> None:
    layout = Layout.of([("table", torch.zeros(3, FEW, dtype=dtype).t())])
    form = TableForm.of(layout.entries[0], {})
    table, rows = RowTable(form, LOGS, Arena(RowTable.size(form, LOGS)[0]), 0, nullcontext), torch.tensor([1, 4])
    assert table.values.stride() == (1, FEW)
    versions = [table.values.clone()]
    for version in range(1, LOGS + 1):
        table.begin(version)
        table.log(version, rows)
        table.values[rows] += version
        versions.append(table.values.clone())
    for version in range(1, LOGS + 1):
        for some in (rows, torch.arange(FEW)):
            assert torch.equal(table.read(some, version), versions[version][some])


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": torch.tensor([0, 6])},
        {"rows": torch.tensor([-1, 2])},
        {"rows": torch.tensor([1, 1])},
        {"rows": torch.tensor([0.0, 1.0])},
        {"rows": torch.tensor([[0, 1]])},
        {"sum": torch.zeros(3)},
        {PARAMETER: torch.zeros(2, 2, dtype=torch.float64)},
    ],
)
def test_a_log_that_is_none_of_the_table_is_refused(wrong: dict[str, Tensor]) -> None:
    log = {"rows": torch.tensor([0, 1]), PARAMETER: torch.zeros(2, 2), "sum": torch.zeros(2)}
    with pytest.raises(ValueError, match="log of version 3"):
        a_table().log_again(3, log | wrong)


# --- runs


class Killed:
    """Kills the worker that makes version 10: where rows are logged, when it has written nonsense into them."""

    def __init__(self, hook: Hook, mark: Path) -> None:
        self.hook = hook
        self.mark = mark  # is made by the one that is killed, for two may come here at once

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:
        if hook is not self.hook or seat.control[Word.HEAD] != 9:
            return
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        (table,) = seat.state.tables.values()
        log = table._logs[10 % len(table._logs)]
        if hook is Hook.LOGGED:
            rows = torch.from_numpy(log.rows[: log.words[log.COUNT]].copy())
            assert 0 < len(rows) < ROWS
            for column in table.columns.values():
                column[rows] = torch.nan
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("hook", [Hook.WRITING, Hook.LOGGED, Hook.PUBLISHING])
@pytest.mark.parametrize(("optimizer", "staleness"), [*zip(BY_HAND, (1, 2, 1, 2), strict=True), ("row adagrad", 1)])
def test_the_same_bits_after_one_was_killed_in_the_middle_of_its_rows(
    optimizer: str, staleness: int, hook: Hook, tmp_path: Path
) -> None:
    """Each optimizer at each hook, each staleness at each hook: how many logs there are asks nobody how rows are
    stepped, but for the columns that are logged, and one optimizer with such is seen with each."""
    expected = train(made(), optimizer, update="ordered", staleness=staleness).digest
    killed = Killed(hook, tmp_path / "killed")
    with planted(killed):
        run = train(made(), optimizer, update="ordered", staleness=staleness, kind="processes", workers=2)
    assert killed.mark.exists()
    assert len(run.failures) == 1
    assert run.digest == expected


@by_optimizer
@pytest.mark.parametrize("update", SAME_BITS)
def test_the_same_bits_with_any_number_of_workers_of_either_kind(update: str, optimizer: str) -> None:
    """Each number and each kind, and not each number of each kind: a worker does not ask for its kind."""
    digests = {
        train(made(), optimizer, update=update, staleness=2, micro_batches=3, kind=kind, workers=workers).digest
        for workers, kind in [(1, "threads"), (3, "threads"), (2, "processes")]
    }
    assert len(digests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_under_snapshot_the_journal_replays_to_the_same_bits(kind: str, tmp_path: Any) -> None:
    run = train(made(), "row adagrad", update="snapshot", kind=kind, workers=3, updates=200, out=tmp_path / "run")
    settings = {"model": made(), "data": words(), "loss": loss, "optimizer": OPTIMIZERS["row adagrad"]}
    again = hogwild.replay(tmp_path / "run", **settings)
    assert again.equal
    assert again.digest == run.digest


@by_optimizer
@pytest.mark.parametrize("update", VERSIONED)
def test_a_run_that_was_interrupted_goes_on_with_its_tables(update: str, optimizer: str, tmp_path: Any) -> None:
    settings = {"update": update, "staleness": 2, "workers": 1}
    expected = train(made(), optimizer, **settings).digest

    def interrupted(progress: Any) -> bool:
        if progress.updates >= 10:
            raise KeyboardInterrupt
        return False

    look = {"evaluate": lambda model: {}, "evaluate_every": 5, "stop": interrupted}
    with pytest.raises(KeyboardInterrupt):
        train(made(), optimizer, **settings, **look, out=tmp_path / "run", checkpoint_every=4)
    resumed = train(made(), optimizer, **settings, resume=tmp_path / "run")
    assert resumed.digest == expected


@pytest.mark.parametrize("update", VERSIONED)
def test_what_is_evaluated_is_the_version_that_is_named(update: str) -> None:
    seen: dict[int, list[str]] = {}
    for workers in (1, 2):
        digests: list[str] = []

        def evaluate(model: nn.Module, digests: list[str] = digests) -> dict[str, float]:
            digests.append(hogwild.digest(model))
            return {}

        train(
            made(),
            "sgd",
            update=update,
            workers=workers,
            staleness=1,
            micro_batches=2,
            evaluate=evaluate,
            evaluate_every=3,
        )
        seen[workers] = digests
    assert len(set(seen[1])) == len(seen[1])
    if update in SAME_BITS:
        assert seen[1] == seen[2]


def test_a_table_of_which_more_is_asked_than_rows_is_seen_whole() -> None:
    """A norm of the table, and an index: a copy at the version, so the same bits as with one worker."""

    def with_norm(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            scale = model.table.weight.norm() + model.table.weight[3].sum()
        return loss(model, batch) * scale

    digests = set()
    for workers in (1, 2):
        settings = {"update": "ordered", "staleness": 1, "kind": "threads", "updates": 20, "batch_size": 8}
        run = hogwild.train(made(), words(), with_norm, optimizer=OPTIMIZERS["sgd"], workers=workers, **settings)
        digests.add(run.digest)
    assert len(digests) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row adagrad"])
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_table_may_get_a_dense_gradient_now_and_then(update: str, optimizer: str) -> None:
    def now_and_then(model: nn.Module, batch: Any) -> Tensor:
        own = loss(model, batch)
        return own + model.table.weight.square().mean() if hogwild.worker_info().update % 3 == 1 else own

    settings = {"update": update, "staleness": 2, "micro_batches": 2, "updates": 20, "batch_size": 8, "kind": "threads"}
    digests = {
        hogwild.train(
            made(), words(), now_and_then, optimizer=OPTIMIZERS[optimizer], workers=workers, **settings
        ).digest
        for workers in (1, 2)
    }
    assert len(digests) == 1


def test_padding_has_no_gradient() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(10, 4, padding_idx=2, sparse=True)
            self.bag = nn.EmbeddingBag(10, 4, padding_idx=3, sparse=True, mode="sum")

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).mean() + self.bag(x, per_sample_weights=torch.ones(x.shape)).square().mean()

    x = torch.randint(10, (64, 5), generator=torch.Generator().manual_seed(0))
    x[:, 0] = 3
    digests = set()
    for update in ("hogwild", "ordered"):
        settings = {"update": update, "staleness": 0, "workers": 1, "kind": "threads", "updates": 9, "batch_size": 8}
        model = Padded()
        hogwild.train(model, x, lambda m, b: m(b), optimizer=OPTIMIZERS["sgd"], **settings)
        digests.add(hogwild.digest(model))
        assert torch.equal(model.bag.weight[3], Padded().bag.weight[3])
    assert len(digests) == 1


def test_the_memory_that_is_asked_for_follows_the_rows_that_are_touched() -> None:
    """Reserved is a log of all rows for each of τ + 1 updates; counted are the table and its words."""
    table = torch.zeros(1000, 64)
    form = TableForm.of(Layout.of([("table", table)]).entries[0], {})
    for few, many in pairwise((1, 4, 16)):
        assert RowTable.size(form, few)[1] == RowTable.size(form, many)[1] <= 1.2 * table.nbytes
