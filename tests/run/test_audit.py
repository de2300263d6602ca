"""The audit: what share of the computed gradient was applied, against what the test knows by itself."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import ClassVar

import problems
import pytest
import torch
from crews import controls_of_runs
from side_by_side import within
from torch import nn
from traits import EXACT, KINDS, NAMES, SAME_BITS

import hogwild
from hogwild.rules.locked import Locked
from hogwild.shared.totals import Totals
from hogwild.shared.words import FOR_A_LOCK, Field
from hogwild.testing import Fault, Hook, PlantedFault, planted

LR = 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", EXACT)
def test_where_no_step_is_lost_the_projection_is_one_up_to_rounding(update, kind):
    run = problems.train(update=update, kind=kind, updates=150, audit=True)
    audit = run.audit
    assert audit.whole
    assert 0 < audit.bound < 1e-3
    assert abs(audit.projection - 1) <= audit.bound
    assert [p.name for p in audit.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(p.updates == 150 * (2 if update == "sync" else 1) for p in audit.parameters)
    assert audit.seconds > 0
    assert json.loads(json.dumps(run.summary()["audit"]))["whole"] is True


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_worker_that_reports_leaves_no_version_unmade(update, monkeypatch):
    """One that ends meanwhile found a lock taken, and left its last version to whoever had it."""
    added, reports, last = Totals.add, threading.Event(), 6 * (2 if update == "sync" else 1) - 1
    controls = controls_of_runs(monkeypatch)

    def other_waits_for_a_lock():
        return any(controls[-1].row(worker)[Field.WAITING] == FOR_A_LOCK for worker in range(2))

    def add_slowly(totals, *account):
        added(totals, *account)
        if not reports.is_set():
            reports.set()
            within(60, other_waits_for_a_lock)

    def late(hook, seat):
        if hook is Hook.COMMITTING and seat.ticket == last - 1:
            assert reports.wait(60)

    monkeypatch.setattr(Totals, "add", add_slowly)
    with planted(late):
        run = problems.train(update=update, workers=2, updates=6, recheck=0, audit=True, max_restarts=0)
    assert run.audit.whole


@pytest.mark.parametrize("update", NAMES)
def test_one_worker_loses_nothing(update):
    assert problems.train(update=update, workers=1, updates=60, audit=True).audit.whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_losses_and_a_schedule_are_accounted_for(kind):
    run = problems.train(
        update="racing", kind=kind, workers=1, audit=True, lr_schedule=lambda update: 1 / (1 + update),
        loss=lambda model, batch: (problems.cross_entropy(model, batch) for _ in range(3)),
    )  # fmt: skip
    assert run.audit.whole


class Miscounting(Locked):
    """Applies the gradient of every hundredth update so many times instead of once."""

    name: ClassVar[str] = "miscounting"
    wrong: ClassVar[list[list[torch.Tensor]]] = []
    all: ClassVar[list[list[torch.Tensor]]] = []

    def __init__(self, times: int) -> None:
        self.times = times

    def commit(self, update, gradient):
        values = [-LR * value.double() for value in gradient.values]
        type(self).all.append(values)
        if update % 100 != 99:
            return super().commit(update, gradient)
        type(self).wrong.append(values)
        for _ in range(self.times):
            super().commit(update, gradient)
        return True


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_lost_and_doubled_updates_are_what_the_test_computes_from_them(workers, times):
    Miscounting.all, Miscounting.wrong = [], []
    audit = problems.train(update=Miscounting(times), workers=workers, updates=300, audit=True).audit
    assert len(Miscounting.wrong) == 3
    along = squared = 0.0
    for i, parameter in enumerate(audit.parameters):
        computed = sum(values[i] for values in Miscounting.all)
        applied = computed + (times - 1) * sum(values[i] for values in Miscounting.wrong)
        expected = (applied * computed).sum() / computed.square().sum()
        assert parameter.projection == pytest.approx(expected.item(), abs=parameter.bound)
        assert parameter.excess > 0
        along, squared = along + (applied * computed).sum().item(), squared + computed.square().sum().item()
    assert audit.projection == pytest.approx(along / squared, abs=audit.bound)
    assert not audit.whole
    assert f"{100 * audit.projection:.7g} %" in audit.summary()


def test_steps_too_small_for_the_dtype_are_not_called_lost():
    model = nn.Linear(8, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)  # from which a step of 2e-8 rounds away, in each of 400 updates
    audit = problems.train(
        model, optimizer=partial(torch.optim.SGD, lr=2e-8), update="locked", updates=400, audit=True,
        loss=lambda model, batch: sum(parameter.sum() for parameter in model.parameters()),
    ).audit  # fmt: skip
    assert audit.projection == 0.0
    assert audit.whole


@pytest.mark.parametrize("update", ["ordered", "locked"])
@pytest.mark.parametrize(("start", "lr"), [(None, 1e-3), (1.0, 1e-4), (1.0, 1e-6)])
def test_steps_that_all_round_the_same_way_stay_within_the_bound(update, start, lr):
    torch.manual_seed(0)
    model = nn.Linear(100, 10, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randn(10, 100) if start is None else torch.full((10, 100), start))
    audit = problems.train(
        model, optimizer=partial(torch.optim.SGD, lr=lr), update=update, workers=1, updates=600, audit=True,
        loss=lambda model, batch: model.weight.abs().sum(),
    ).audit  # fmt: skip
    assert audit.whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("update", ["ordered", "locked"])
def test_rows_that_a_batch_names_often_stay_within_the_bound(update, dtype):
    model = nn.Embedding(20, 8, sparse=True).to(dtype)
    with torch.no_grad():
        model.weight.fill_(1.0)
    audit = problems.train(
        model, data=torch.zeros(64, dtype=torch.int64), update=update, workers=1, batch_size=64, updates=50, audit=True,
        optimizer=partial(torch.optim.SGD, lr=1e-4), loss=lambda model, rows: model(rows).float().square().mean(),
    ).audit  # fmt: skip
    assert audit.whole


def test_gradients_that_are_not_finite_are_not_called_applied():
    def loss(model, batch):
        return problems.cross_entropy(model, batch) * (float("nan") if hogwild.worker_info().update else 1.0)

    audit = problems.train(update="locked", on_nonfinite="ignore", audit=True, loss=loss).audit
    assert not audit.whole
    assert "not finite" in audit.summary()
    json.dumps(audit.to_dict(), allow_nan=False)


def test_steps_of_zero_are_not_called_no_gradient():
    still = partial(torch.optim.SGD, lr=0.0)
    audit = problems.train(update="locked", updates=10, optimizer=still, audit=True).audit
    assert audit.summary() == "gradients were computed, and their steps add up to zero, as at a learning rate of 0"
    assert audit.projection is None and audit.whole


def test_sets_that_are_skipped_leave_no_account():
    with pytest.warns(UserWarning, match="audit asked for, but on_nonfinite='skip'"):
        assert problems.train(update="sync", on_nonfinite="skip", audit=True).audit is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_race_of_ones_own_gradients_is_a_race_and_trains(kind):
    def work(worker):
        while (update := worker.claim()) is not None:
            replica = worker.read(update)
            worker.commit(update, [torch.ones_like(p) for p in replica.parameters()])

    model = problems.mlp()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    run = hogwild.launch(
        work, model, optimizer=problems.SGD, updates=7, update="racing", workers=1, kind=kind, audit=True
    )
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - 0.7)
    assert run.audit.whole


def test_what_is_skipped_on_purpose_is_not_lost():
    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if hogwild.worker_info().update in (3, 17) else value

    run = problems.train(update="locked", loss=loss, on_nonfinite="skip", audit=True)
    assert sum(usage.skipped for usage in run.workers) == 2
    assert run.audit.whole
    assert all(parameter.updates == 38 for parameter in run.audit.parameters)


@pytest.mark.parametrize("update", ["ordered", "snapshot"])
def test_what_is_computed_after_a_stop_is_not_lost(update):
    run = problems.train(
        update=update, updates=200, audit=True, evaluate=problems.accuracy, evaluate_every=20, stop=lambda p: True
    )
    assert run.updates == 20
    assert run.audit.whole


def test_sparse_gradients_have_an_account():
    torch.manual_seed(0)
    model = nn.Embedding(50, 4, sparse=True)
    batches = torch.randint(0, 50, (300,))
    run = problems.train(
        model, data=batches, update="locked", audit=True, loss=lambda model, rows: model(rows).square().mean()
    )
    assert run.audit.whole
    assert run.audit.parameters[0].projection == pytest.approx(1, abs=run.audit.bound)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"optimizer": problems.MOMENTUM}, "the optimizer is not plain SGD"),
        ({"optimizer": problems.ADAM}, "the optimizer is not plain SGD"),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm changes gradients after they were computed"),
    ],
    ids=["momentum", "adam", "clipping"],
)
def test_elsewhere_there_is_none_and_a_warning_says_why(arguments, why):
    with pytest.warns(UserWarning, match=f"audit asked for, but {why}.*run.audit will be None"):
        run = problems.train(audit=True, **arguments)
    assert run.audit is None
    assert run.summary()["audit"] is None


def test_what_was_not_asked_for_there_is_not():
    run = problems.train(audit=False)
    assert run.audit is None
    assert run.summary()["audit"] is None


def test_a_killed_worker_takes_its_account_with_it():
    fault = PlantedFault(Fault.KILL, Hook.COMPUTING, 10)
    with planted(fault):
        run = problems.train(update="ordered", kind="processes", audit=True)
    assert fault.fired
    assert run.failures
    assert run.audit is None


def test_a_loop_of_ones_own_is_audited_too():
    x, y = problems.data()

    def work(worker):
        while (update := worker.claim()) is not None:
            replica = worker.read(update)
            loss = problems.cross_entropy(replica, (x, y))
            worker.commit(update, torch.autograd.grad(loss, list(replica.parameters())), loss.item())

    run = hogwild.launch(work, problems.mlp(), optimizer=problems.SGD, updates=30, update="locked", audit=True)
    assert run.audit.whole


def test_resuming_begins_a_new_account(tmp_path):
    arguments = {"update": "ordered", "audit": True, "updates": 40, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            **arguments,
            checkpoint_every=10,
            evaluate=problems.interrupting(5, lambda model: {"accuracy": 0.0}),
            evaluate_every=5,
        )
    run = problems.train(**arguments, resume=tmp_path)
    assert run.updates == 40
    assert run.audit.whole
    assert all(parameter.updates < 40 for parameter in run.audit.parameters)
