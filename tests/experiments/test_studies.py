"""Each study settles its claims, and says so when its instrument or its subject is broken.

A fault is planted in what a study measures with; the study must then leave at least one claim unsettled, and
without the fault none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib

import pytest
import torch
from hogwild.experiments import _equation, _race, _shared_grad, accumulation, minibatch, reductions, two_apis
from torch import nn

from hogwild.autograd import average_gradients, graph_summary, reduction_gradients
from hogwild.experiment import Study, StudySettings

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("gymnasium")

STUDIES = ("reductions", "accumulation", "two_apis", "minibatch", "loss_list")
CUT = ("accumulation", "two_apis", "loss_list")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def unsettled(claims):
    return [claim.text for claim in claims if not claim.settled]


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_settled(name, tmp_path, request, fonts):
    study = importlib.import_module(f"hogwild.experiments.{name}").experiment
    assert isinstance(study, Study)
    assert study.name == name
    cut = request.getfixturevalue(f"cut_{name}") if name in CUT else set()
    draws = torch.get_rng_state()
    found = study.run(StudySettings(out=tmp_path / "figures"))
    assert set(unsettled(found.claims)) <= cut
    assert len({claim.text for claim in found.claims}) == len(found.claims) >= 10
    assert found.answer
    assert found.figures
    assert all(path.stat().st_size > 5000 for path in found.figures)
    assert torch.equal(torch.get_rng_state(), draws), "a study must leave torch's generator as it was"
    assert torch.get_num_threads() == 1


@pytest.fixture
def small(monkeypatch):
    """Studies that train nothing, on half of the digits and undrawn."""
    monkeypatch.setattr(reductions, "BATCH", 32)
    monkeypatch.setattr(reductions, "_plot", lambda ways, true, path: path)
    monkeypatch.setattr(minibatch, "_plot", lambda growth, path: path)
    monkeypatch.setattr(minibatch, "_draw", lambda model, images, labels, out: ())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("study", [reductions, minibatch])
def test_a_study_without_a_race_or_a_clock_repeats_itself(study, tmp_path):
    first, second = (study.run(StudySettings(out=tmp_path)) for _ in range(2))
    assert first == second
    assert not unsettled(first.claims), "so what is reported below comes from the fault"


# reductions


@contextlib.contextmanager
def blind_watch(model):
    """A checker that sees nothing."""
    yield []


def off_in_the_mean(model, loss, batch):
    found = reduction_gradients(model, loss, batch)
    return dataclasses.replace(found, mean=found.mean + 1e-5)


def never_separate(model, loss, batch):
    found = reduction_gradients(model, loss, batch)
    return dataclasses.replace(found, separate=found.mean)


def always_copied(model, batch, *, copy=True, **how):
    return FOUR_WAYS(model, batch, copy=True, **how)


FOUR_WAYS = reductions.four_ways


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("instrument", "fault"),
    [
        ("watch_gradients", blind_watch),
        ("reduction_gradients", off_in_the_mean),
        ("reduction_gradients", never_separate),
        ("four_ways", always_copied),
    ],
)
def test_reductions_reports_a_broken_instrument(instrument, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(reductions, instrument, fault)
    assert unsettled(reductions.run(StudySettings(out=tmp_path)).claims)


# accumulation, on ten updates: too few for the failure to show, enough for bits to part

LATE = {
    "autograd.grad trains",
    "backward() without zeroing makes the model completely fail",
    "p.data -= 0.1 * p.grad fails just so",
    "the accumulated gradient outgrows the true one",
}


def short_accumulation(monkeypatch, tmp_path, cut_accumulation):
    def load(settings):
        data = LOAD(settings)
        return dataclasses.replace(data, train=(data.train[0][:160], data.train[1][:160]), batch=16, epochs=1)

    monkeypatch.setattr(accumulation, "load", load)
    monkeypatch.setattr(accumulation, "_plot", lambda runs, data, path: path)
    monkeypatch.setattr(_shared_grad, "plot", lambda found, path: path)
    return set(unsettled(accumulation.run(StudySettings(out=tmp_path)).claims)) - LATE - cut_accumulation


LOAD = accumulation.load


def zeroing_leaves_a_trace(model, loss):
    gradients = accumulation.by_backward(model, loss, zero=True)
    gradients[0].view(-1)[0] += 1e-7
    return gradients


def test_accumulation_finds_equal_bits(monkeypatch, tmp_path, cut_accumulation):
    assert short_accumulation(monkeypatch, tmp_path, cut_accumulation) == set()


@pytest.mark.parametrize(
    ("loop", "fault"),
    [
        ("backward, zeroed", zeroing_leaves_a_trace),
        ("backward, zeroed", accumulation.LOOPS["backward, not zeroed"]),
        ("autograd.grad", lambda model, loss: [2 * one for one in accumulation.by_grad(model, loss)]),
    ],
    ids=["a trace left", "not zeroed", "doubled"],
)
def test_accumulation_reports_other_bits(loop, fault, monkeypatch, tmp_path, cut_accumulation):
    monkeypatch.setitem(accumulation.LOOPS, loop, fault)
    assert "autograd.grad and zeroed backward() end with the same bits" in short_accumulation(
        monkeypatch, tmp_path, cut_accumulation
    )


def test_accumulation_reports_a_backward_that_does_not_accumulate(monkeypatch, tmp_path, cut_accumulation):
    """With a `backward()` that cleared `.grad` by itself nothing would fail."""
    text = "backward() without zeroing makes the model completely fail"
    assert text not in cut_accumulation, "it is settled where nothing is broken"
    always_zeroed = accumulation.LOOPS["backward, zeroed"]
    monkeypatch.setitem(accumulation.LOOPS, "backward, not zeroed", always_zeroed)
    monkeypatch.setattr(accumulation, "train", functools.cache(accumulation.train))  # several of the same
    monkeypatch.setattr(accumulation, "_plot", lambda runs, data, path: path)
    assert text in unsettled(accumulation.run(StudySettings(out=tmp_path)).claims)


def test_accumulation_reads_mnist_files(tmp_path):
    for part, count in (("train", 60), ("t10k", 20)):
        images = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(images + bytes(range(256)) * (count * 784 // 256 + 1))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1]) + count.to_bytes(4, "big") + bytes(n % 10 for n in range(count))
        )
    for path in tmp_path.glob("*-images-*"):
        count = int.from_bytes(path.read_bytes()[4:8], "big")
        path.write_bytes(path.read_bytes()[: 16 + count * 784])
    data = accumulation.load(StudySettings(out=tmp_path, data=tmp_path))
    assert data.name == "MNIST"
    assert data.train[0].shape == (60, 1, 28, 28)
    assert data.test[1].tolist() == [n % 10 for n in range(20)]
    assert float(data.train[0].max()) == 1.0


# two_apis


def test_the_worked_example_and_the_mutations_hold():
    assert unsettled([*two_apis.worked_example(), *two_apis.mutations()]) == []


def test_two_apis_reports_another_value(monkeypatch):
    monkeypatch.setattr(two_apis, "X1", 0.3949)
    assert "y is 4.1377" in unsettled(two_apis.worked_example())


def test_two_apis_reports_fits_that_part():
    def nudged(loss, parameters):
        return [one * (1 + 1e-6) for one in _equation.by_grad(loss, parameters)]

    torch.manual_seed(0)
    start = _equation.DryRun()
    exact, same, other = (_equation.fit(start, api, 20) for api in (_equation.by_grad, _equation.by_backward, nudged))
    text = "the two fits have the same bits"
    assert text not in unsettled(two_apis.differential_equation(exact, same))
    assert text in unsettled(two_apis.differential_equation(exact, other))


def test_two_apis_reports_a_fit_that_is_wrong():
    fit = _equation.Fit(nn.Linear(1, 1), [1.0], error=0.02)
    assert len(unsettled(two_apis.differential_equation(fit, fit))) == 2


def some_races(**changed):
    """What is counted on a machine with two cores."""
    total = 1_000_000
    some, none = _race.Loss(total, 100.0), _race.Loss(total, 0.0)
    found = {
        "backward": {"one Parameter": none, "replicas": some, "processes": some},
        "grad": dict.fromkeys(_race.KINDS, none),
        "applied": {"one Parameter": [1.1], "processes": [1.0001, 1.6]},
    }
    for path, value in changed.items():
        table, kind = path.split("__")
        found[table][kind.replace("_", " ")] = value
    return two_apis.Races(**found)


@pytest.mark.parametrize(
    "changed",
    [
        {"backward__one_Parameter": _race.Loss(1_000_000, 1.0)},
        {"backward__replicas": _race.Loss(1_000_000, 0.0)},
        {"backward__processes": _race.Loss(1_000_000, 0.0)},
        {"grad__processes": _race.Loss(1_000_000, 1.0)},
        {"grad__replicas": _race.Loss(1_000_000, -1.0)},
        {"applied__one_Parameter": [1.0, 1.0]},
        {"applied__processes": [1.0]},
    ],
    ids=str,
)
def test_two_apis_reports_each_count(changed, monkeypatch):
    monkeypatch.setattr(_race, "cores", lambda: 2)
    assert unsettled(two_apis.races(some_races(), 4, 4)) == []
    assert len(unsettled(two_apis.races(some_races(**changed), 4, 4))) == 1
    assert len(unsettled(two_apis.races(some_races(), 1, 4))) == 1


def forgetful(memory, worker, count, parameter=None):
    """Loses one pass of one worker."""
    _race.accumulate(memory, worker, count - 1 if worker == 0 else count, parameter)


def test_the_race_counts_a_loss_that_was_planted():
    assert _race.lost(_race.accumulate, "one Parameter", 50, 1).missing == 0
    planted = _race.lost(forgetful, "one Parameter", 50, 1)
    assert (planted.missing, planted.computed) == (_race.VALUES, 100 * _race.VALUES)


def test_the_race_counts_what_was_applied(monkeypatch):
    """One worker alone, so that nothing races: 1 unless a fault is planted."""
    honest = _race.step_and_zero

    def greedy(memory, worker, count, parameter=None):
        honest(memory, worker, count + 1, parameter)

    monkeypatch.setattr(_race, "WORKERS", 1)
    assert _race.applied("one Parameter", 50, 1) == [1.0]
    monkeypatch.setattr(_race, "step_and_zero", greedy)
    assert _race.applied("one Parameter", 50, 1) == [1.02]


def broken(memory, worker, count, parameter=None):
    """A worker that raises."""
    raise ArithmeticError("planted")


@pytest.mark.parametrize("kind", _race.KINDS)
def test_a_worker_that_raises_is_reported(kind):
    with pytest.raises(ArithmeticError, match="planted"):
        list(_race.race(broken, kind, 1, [_race.shared()]))


@pytest.mark.parametrize("turns", [False, True], ids=["one order", "orders in turn"])
def test_the_order_of_additions_shows_in_the_bits(turns, monkeypatch):
    """One worker adds both workers' gradients, in one order or in two."""
    runs = iter(range(4))

    def add(memory, worker, count, parameter=None):
        order = [0] * 7 + [1] * 7
        for index in reversed(order) if turns and next(runs) % 2 else order:
            memory.grad.add_(0.1 if index == 0 else 1 / 3)

    monkeypatch.setattr(_race, "WORKERS", 1)
    assert _race.distinct(add, "replicas", 1, 4) == (2 if turns else 1)


# minibatch


def one_arm_per_sample(loss):
    """Counts as if each of the saved bytes were a node."""
    found = graph_summary(loss)
    return dataclasses.replace(found, nodes=found.nodes + found.bytes)


def summed_not_averaged(losses, parameters):
    found = average_gradients(losses, parameters)
    return dataclasses.replace(found, gradients=tuple(one * found.count for one in found.gradients))


def parameters_with_the_rest(loss):
    found = graph_summary(loss)
    return dataclasses.replace(found, parameter_bytes=found.parameter_bytes + found.bytes)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("instrument", "fault"),
    [
        ("graph_summary", one_arm_per_sample),
        ("graph_summary", parameters_with_the_rest),
        ("average_gradients", summed_not_averaged),
    ],
)
def test_minibatch_reports_a_broken_instrument(instrument, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(minibatch, instrument, fault)
    assert unsettled(minibatch.run(StudySettings(out=tmp_path)).claims)


def test_minibatch_compares_what_is_printed():
    assert minibatch._values("x", torch.tensor([0.29286]), [0.2929]).holds
    assert not minibatch._values("x", torch.tensor([0.29284]), [0.2929]).holds
    assert not minibatch._values("x", None, [0.2929]).holds
