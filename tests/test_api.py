"""train(): one body for every rule and both kinds."""

from __future__ import annotations

import threading

import numpy as np
import problems
import pytest
import torch
from torch import nn
from traits import KINDS, NAMES, SAME_BITS, VERSIONED

import hogwild
from hogwild.rules import Hogwild

in_every_way = [pytest.mark.parametrize("update", NAMES), pytest.mark.parametrize("kind", KINDS)]


def every_way(test):
    for mark in in_every_way:
        test = mark(test)
    return test


@every_way
def test_trains_and_reports(update, kind):
    model = problems.mlp()
    before = problems.accuracy(model)["accuracy"]
    run = problems.train(model, update=update, kind=kind, epochs=8, updates=None, evaluate=problems.accuracy)

    updates = 8 * 13 if update != "sync" else 8 * 13 // 2
    assert run.updates == updates
    assert sorted(run.journal["update"]) == list(range(updates)), "every update exactly once"
    assert set(run.journal["worker"]) <= {0, 1}
    assert run.samples == 8 * 200
    assert np.isfinite(run.losses).all()
    assert run.losses[-10:].mean() < run.losses[:10].mean()
    assert run.metrics["accuracy"] > max(0.8, before)
    assert run.digest == hogwild.digest(model) == hogwild.digest(dict(run.state))
    assert sum(usage.computed for usage in run.workers) == 8 * 13
    assert all(usage.cpu_seconds > 0 and usage.rss > 0 for usage in run.workers)
    assert run.failures == () and run.in_doubt == () and run.stopped is None


@every_way
def test_the_model_is_an_ordinary_module_afterwards(update, kind):
    model = problems.conv_bn()
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    run = problems.train(model, update=update, kind=kind, updates=6)
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == places
    assert all(parameter.grad is None for parameter in model.parameters())
    problems.cross_entropy(model, problems.data()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert hogwild.digest(model) != run.digest


@every_way
def test_evaluates_at_its_cadence_on_the_version_it_names(update, kind):
    seen = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(hogwild.digest(model))
        return {"norm": sum(p.norm().item() for p in model.parameters())}

    run = problems.train(update=update, kind=kind, updates=20, evaluate=evaluate, evaluate_every=6)
    versions = [row["update"] for row in run.evaluations]
    assert seen[-1] == run.digest and versions[-1] == 20
    if update in VERSIONED:
        assert versions == [6, 12, 18, 20]
        assert len(set(seen)) == 4, "four versions, four digests"
    else:  # a worker that is overtaken by a later evaluation leaves its own out
        assert versions == sorted(set(versions)) and set(versions) <= {6, 12, 18, 20}


@every_way
def test_stops_early(update, kind):
    run = problems.train(
        update=update,
        kind=kind,
        updates=1000,
        evaluate=problems.accuracy,
        evaluate_every=5,
        stop=lambda p: p.updates >= 10,
    )
    assert run.stopped == "stop"
    assert 10 <= run.updates < 100
    if update in VERSIONED:
        assert run.updates == 10


@every_way
@pytest.mark.parametrize("form", ["list", "generator"])
def test_losses_may_be_a_list_or_a_generator(update, kind, form):
    def losses(model: nn.Module, batch):
        x, y = batch
        parts = (nn.functional.cross_entropy(model(x[i : i + 4]), y[i : i + 4]) for i in range(0, len(x), 4))
        return list(parts) if form == "list" else parts

    one = problems.train(update=update, kind=kind, workers=1, staleness=0, micro_batches=1, updates=10)
    split = problems.train(update=update, kind=kind, workers=1, staleness=0, micro_batches=1, updates=10, loss=losses)
    for name, value in one.state.items():
        torch.testing.assert_close(split.state[name], value, rtol=1e-4, atol=1e-6)


@every_way
def test_a_worker_that_raises_ends_the_run_with_its_traceback(update, kind):
    def loss(model: nn.Module, batch):
        info = hogwild.worker_info()
        if info is not None and info.update == 7:
            raise KeyError("the seventh batch is bad")
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.WorkerError) as caught:
        problems.train(update=update, kind=kind, loss=loss, updates=2000)
    text = str(caught.value)
    assert "raised KeyError at update 7" in text
    assert "the seventh batch is bad" in text and "in loss" in text


@every_way
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_what_is_not_finite_does_not_touch_the_model(update, kind, policy):
    def loss(model: nn.Module, batch):
        info = hogwild.worker_info()
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if info is not None and info.batch == 7 else value

    model = problems.mlp()
    if policy == "raise":
        with pytest.raises(hogwild.NonFiniteError, match=r"loss is nan at update \d \(batch 7\)"):
            problems.train(model, update=update, kind=kind, loss=loss, on_nonfinite=policy)
    else:
        run = problems.train(model, update=update, kind=kind, loss=loss, on_nonfinite=policy)
        assert sum(usage.skipped for usage in run.workers) == 1
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_worker_info_is_that_of_the_update(kind):
    assert hogwild.worker_info() is None

    def loss(model: nn.Module, batch):
        info = hogwild.worker_info()
        info.log(update_seen=info.update, drawn=torch.rand((), generator=info.generator).item())
        return problems.cross_entropy(model, batch)

    runs = [problems.train(kind=kind, workers=workers, loss=loss, updates=12) for workers in (1, 2)]
    drawn = [{row["update"]: row["drawn"] for row in run.logged} for run in runs]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == set(range(12))
    assert all(row["update_seen"] == row["update"] for run in runs for row in run.logged)


@every_way
def test_a_loop_of_ones_own(update, kind):
    x, y = problems.data()

    def work(worker: hogwild.Worker) -> None:
        while (number := worker.claim()) is not None:
            replica = worker.read(number)
            rows = torch.randint(0, len(x), (16,), generator=worker.info.generator)
            loss = nn.functional.cross_entropy(replica(x[rows]), y[rows])
            gradient = torch.autograd.grad(loss, list(replica.parameters()))
            worker.commit(number, gradient, loss.item())

    model = problems.mlp()
    run = hogwild.launch(work, model, optimizer=problems.SGD, updates=100, update=update, kind=kind)
    assert run.updates == 100
    assert problems.accuracy(model)["accuracy"] > 0.8
    if run.config.update in SAME_BITS:
        again = hogwild.launch(work, problems.mlp(), optimizer=problems.SGD, updates=100, update=update, workers=1)
        assert again.digest == run.digest


class HalfOrNone(Hogwild):
    """A rule from outside the package: half of every second gradient, and nothing of the others."""

    name = "half-or-none"

    def prepare(self, update, gradient):
        gathered = super().prepare(update, gradient)
        if gathered is None or update % 2:
            self.seat.leave_out()
            return None
        gathered.scale(0.5)
        return gathered


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_of_ones_own(kind):
    model = problems.mlp()
    run = problems.train(model, update=HalfOrNone(), kind=kind, workers=1, updates=10)
    assert run.updates == 5
    assert run.journal["update"].tolist() == [0, 2, 4, 6, 8]
    x, y = problems.data()
    schedule = hogwild.Schedule(len(x), 16)
    expected = problems.mlp()
    optimizer = problems.SGD(expected.parameters())
    for number in range(0, 10, 2):
        rows = schedule.indices(number)
        optimizer.zero_grad()
        (problems.cross_entropy(expected, (x[rows], y[rows])) / 2).backward()
        optimizer.step()
    assert hogwild.digest(model) == hogwild.digest(expected)


def test_a_slow_worker_does_not_hold_up_the_others_under_the_racing_rules():
    def loss(model: nn.Module, batch):
        info = hogwild.worker_info()
        if problems.in_worker_thread():
            if info.update == 0:
                assert released.wait(60)
            elif info.update == 35:
                released.set()
        return problems.cross_entropy(model, batch)

    released = threading.Event()
    run = problems.train(update="hogwild", loss=loss, updates=40)
    assert released.is_set(), "update 35 was reached while update 0 was still computing"
    assert run.staleness.max >= 30


def test_an_evaluation_in_training_mode_does_not_change_the_trained_model():
    def trains_on(model):
        x, _ = problems.data()
        model(x)  # moves running averages
        return {"seen": 1.0}

    plain = problems.train(problems.conv_bn(), update="ordered")
    assert problems.train(problems.conv_bn(), update="ordered", evaluate=trains_on).digest == plain.digest


def test_a_model_in_shared_memory_stays_there_and_holds_the_trained_values():
    model = problems.mlp().share_memory()
    run = problems.train(model, update="ordered")
    assert all(parameter.is_shared() for parameter in model.parameters())
    assert hogwild.digest(model) == run.digest
    other = problems.mlp()
    problems.train(other, update="ordered")
    assert not any(parameter.is_shared() for parameter in other.parameters())


def test_a_run_and_its_audit_are_printed_in_a_line():
    run = problems.train(update="ordered", audit=True)
    assert str(run).startswith("run · ordered, staleness 1 · 2 threads · 40 updates in ")
    assert run.digest[:16] in str(run)
    assert str(run.audit) == run.audit.summary()
