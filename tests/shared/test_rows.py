"""A copy of a table is brought up to date row by row, whoever died while writing it."""

from __future__ import annotations

import os
import signal
from typing import Any

import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import OPTIMIZERS, loss, made, train, words
from torch import Tensor, nn
from traits import VERSIONED, WITHOUT_SLOTS

import hogwild
from hogwild.shared.arena import Arena
from hogwild.shared.layout import Layout
from hogwild.shared.rows import RowVersions
from hogwild.shared.words import Hook, Word
from hogwild.testing import planted
from hogwild.workers.seat import WorkerSeat

ROWS, COPIES = 6, 4
BY_ROW = [update for update in VERSIONED if update in WITHOUT_SLOTS]  # with versions that differ by rows
START, HALF, WRITTEN, COMPLETE, DONE = range(5)

attempts = st.tuples(
    st.integers(0, COPIES - 1),
    st.lists(st.integers(0, ROWS - 1), max_size=4),
    st.sampled_from([START, HALF, WRITTEN, COMPLETE, DONE, DONE, DONE, DONE]),
)


def of_rows(rows: list[int]) -> Tensor:
    """A sparse gradient of ones; a row may come twice."""
    return torch.sparse_coo_tensor([rows], torch.ones(len(rows), 2), (ROWS, 2), check_invariants=True)


@given(st.lists(attempts, max_size=40))
def test_a_copy_that_is_complete_is_the_newest_version(program: list[tuple[int, list[int], int]]) -> None:
    layout = Layout.of([("table", torch.zeros(ROWS, 2)), ("bias", torch.zeros(2))])
    arena = Arena(RowVersions.size(layout, [0], COPIES))
    versions = RowVersions(layout, [0], COPIES, arena, 0)
    versions.prepare()
    copies = [torch.full((ROWS, 2), float("nan")) for _ in range(COPIES)]
    copies[0] = torch.zeros(ROWS, 2)
    head, version, newest = 0, 0, torch.zeros(ROWS, 2)
    for copy, rows, until in program:
        if copy == head:
            continue
        gradient = of_rows(rows)
        versions.begin([gradient, None], version + 1)
        if until > START:
            versions.bring(copy, 0, [(copies[head], copies[copy])])
            copies[copy][rows] = torch.nan
        if until > HALF:
            copies[copy][rows] = copies[head][rows]
            copies[copy].add_(gradient)
        if until > WRITTEN:
            versions.complete([copy], version)
        if until == DONE:
            head, version = copy, version + 1
            newest = newest + gradient.to_dense()
            assert torch.equal(copies[head], newest)


class Killed:
    """Kills the worker that applies update 9: at WRITING when it has written nonsense where that update may write."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.fired = torch.zeros(1).share_memory_()

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:
        state = seat.state
        rows = torch.from_numpy((state.row_versions._last[0] == 10).nonzero()[0])
        if hook is not self.hook or self.fired or seat.control[Word.HEAD] != 9 or not len(rows):
            return
        self.fired.fill_(1)
        assert len(rows) < len(words()[0])
        tables = [state.slots[10 % len(state.slots)].parameters[0], *state.optimizer_states[0].tensors[0].values()]
        for table in tables:
            if table.dim() == 2 and hook is Hook.WRITING:
                table[rows] = torch.nan
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("optimizer", ["sgd", "sparse adam", "adagrad"])
@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("hook", [Hook.WRITING, Hook.PUBLISHING])
def test_the_same_bits_with_workers_and_after_one_was_killed_in_the_middle_of_its_rows(
    optimizer: str, staleness: int, hook: Hook
) -> None:
    expected = train(made(), optimizer, update="ordered", staleness=staleness).digest
    killed = Killed(hook)
    with planted(killed):
        run = train(made(), optimizer, update="ordered", staleness=staleness, kind="processes", workers=2)
    assert killed.fired and len(run.failures) == 1
    assert run.digest == expected


class Mixed(nn.Module):
    """A layer and two tables; where `seldom` is not so, one table gets no gradient and the other a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)
        self.seldom = nn.Embedding(50, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, *, seldom: bool) -> Tensor:
        inner = self.words(x) + self.seldom(x) if seldom else self.words(x) + self.words.weight.mean(0)
        return self.head(inner.mean(1))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("update", BY_ROW)
def test_tables_beside_layers_some_with_no_gradient_or_a_dense_one(update: str, optimizer: str) -> None:
    def part(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x, seldom=hogwild.worker_info().update % 3 == 0), y)

    def mixed() -> nn.Module:
        torch.manual_seed(5)
        return Mixed()

    settings = {"loss": part, "data": words(), "optimizer": OPTIMIZERS[optimizer], "updates": 40}
    expected = problems.train(mixed(), **settings, update="hogwild", workers=1).digest
    once = problems.train(mixed(), **settings, update=update, workers=1, staleness=0).digest
    assert once == expected


class Shrinking(torch.optim.Adagrad):
    """An optimizer that takes sparse gradients and writes every row."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(0.999)


@pytest.mark.parametrize("update", BY_ROW)
@pytest.mark.parametrize("how", ["subclass", "hook"])
def test_what_writes_other_rows_too_gets_whole_tables(update: str, how: str) -> None:
    def shrink(stepper: Any, *_: Any) -> None:
        with torch.no_grad():
            for parameter in stepper.param_groups[0]["params"]:
                parameter.mul_(0.999)

    def optimizer(named: Any) -> torch.optim.Optimizer:
        if how == "subclass":
            return Shrinking(named, lr=0.2)
        stepper = torch.optim.Adagrad(named, lr=0.2)
        stepper.register_step_post_hook(shrink)
        return stepper

    settings = {"data": words(), "loss": loss, "optimizer": optimizer, "workers": 1, "staleness": 0}
    expected = problems.train(made(), **settings, update="hogwild").digest
    assert problems.train(made(), **settings, update=update).digest == expected


@pytest.mark.parametrize("update", VERSIONED)
def test_a_loss_that_writes_to_a_table_is_refused_where_versions_are_kept(update: str) -> None:
    model = made()
    model.table = nn.Embedding(50, 8, sparse=True, max_norm=1.0)
    with pytest.raises(hogwild.ArgumentError, match=r"writes to table\.weight .*max_norm.*update='hogwild'"):
        train(model, update=update)
    assert train(model, update="hogwild").updates == 30


def test_a_resumed_run_knows_nothing_of_its_copies(tmp_path: Any) -> None:
    settings = {"update": "ordered", "staleness": 1, "optimizer": "sparse adam"}
    expected = train(made(), **settings).digest
    train(made(), **settings, out=tmp_path, checkpoint_every=7)
    model = made()
    assert train(model, **settings, resume=tmp_path).digest == expected == hogwild.digest(model)
