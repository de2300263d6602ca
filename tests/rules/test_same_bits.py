"""The promise: under `ordered` and `sync` the bits depend on neither worker count, kind, timing nor load."""

from __future__ import annotations

import time
import warnings
from functools import partial

import problems
import pytest
import torch
from crews import other_process
from side_by_side import within
from torch import nn
from traits import SAME_BITS

import hogwild
from hogwild.shared import words
from hogwild.shared.alarms import Alarms
from hogwild.shared.words import LOOKING, Field
from hogwild.testing import Hook, RandomDelays, planted

MODELS = {"mlp": problems.mlp, "conv_bn": problems.conv_bn, "dropout": problems.dropout}
OPTIMIZERS = {"momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.5), "adam": problems.ADAM}


@pytest.fixture(autouse=True)
def no_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="staleness")
        yield


def digest(model, optimizer, updates=48, **arguments):
    run = problems.train(MODELS[model](), optimizer=OPTIMIZERS[optimizer], updates=updates, **arguments)
    assert run.updates == len(run.journal) == updates
    return run.digest


@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "momentum"), ("conv_bn", "adam"), ("dropout", "momentum")])
def test_ordered_has_one_digest(model, optimizer):
    """Each number of workers and each kind, and not each number of each kind: a worker does not ask for its kind.
    Nor does an optimizer for what is trained: each model meets one here and the other under sync."""
    ordered = {"update": "ordered", "staleness": 7, "updates": 30}
    crews = [(1, "processes"), (2, "processes"), (4, "processes"), (8, "processes")]
    if model != "dropout":
        crews[:3] = (1, "threads"), (2, "processes"), (4, "threads")
    digests = set()
    for workers, kind in crews:
        with planted(RandomDelays(seed=workers)):
            digests.add(digest(model, optimizer, kind=kind, workers=workers, **ordered))
    digests.add(digest(model, optimizer, kind="processes", workers=3, gradient="backward", **ordered))
    assert len(digests) == 1


@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "adam"), ("conv_bn", "momentum"), ("dropout", "adam")])
def test_sync_has_one_digest(model, optimizer):
    """As of ordered."""
    crews = [(1, "processes"), (2, "processes"), (4, "processes")]
    if model != "dropout":
        crews = [(1, "threads"), (2, "processes"), (3, "threads"), (4, "processes")]
    digests = set()
    for workers, kind in crews:
        with planted(RandomDelays(seed=workers)):
            sync = {"update": "sync", "micro_batches": 4, "updates": 24}
            digests.add(digest(model, optimizer, kind=kind, workers=workers, **sync))
    assert len(digests) == 1


def test_the_digest_depends_on_what_it_should():
    base = {"model": "mlp", "optimizer": "adam", "update": "ordered", "kind": "threads"}
    others = [{}, {"staleness": 2}, {"seed": 1}, {"optimizer": "momentum"}, {"batch_size": 17}, {"shuffle": False}]
    others.append({"batch_size": 17, "drop_last": True})
    digests = [digest(**{**base, **other}) for other in others]
    assert len(set(digests)) == len(others)


by_optimizer = pytest.mark.parametrize("optimizer", [*OPTIMIZERS.values(), problems.SGD], ids=[*OPTIMIZERS, "sgd"])


def same_as_the_reference(make, *, workers, kind="threads", **settings):
    model, serial = make(), make()
    run = problems.train(model, workers=workers, kind=kind, **settings)
    problems.train_serially(serial, **settings)
    assert run.digest == hogwild.digest(serial)
    return run


@by_optimizer
@pytest.mark.parametrize("model", ["mlp", "conv_bn"])
def test_without_staleness_ordered_is_serial_training(model, optimizer):
    settings = {"update": "ordered", "staleness": 0, "updates": 48}
    same_as_the_reference(MODELS[model], optimizer=optimizer, workers=1, **settings)


@by_optimizer
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_sync_accumulates(micro_batches, optimizer):
    settings = {"update": "sync", "micro_batches": micro_batches, "updates": 30}
    same_as_the_reference(problems.mlp, optimizer=optimizer, workers=micro_batches, **settings)


class Fours:
    """Four batches of the schedule at a time."""

    def batch(self, update, generator):
        (x, y), schedule = problems.data(), hogwild.Schedule(200, 16)
        numbers = [schedule.indices(number) for number in range(4 * update, 4 * update + 4)]
        return [(x[rows], y[rows]) for rows in numbers]


def one_by_one(model, batches):
    return (problems.cross_entropy(model, batch) for batch in batches)


def test_sync_with_batch_norm_has_the_parameters_of_serial_accumulation():
    """Running averages do not enter a training step; they are re-based, and agree to rounding."""
    serial = problems.conv_bn()
    problems.train_serially(serial, data=Fours(), loss=one_by_one, updates=20)
    expected = serial.state_dict()
    run = same_as_the_reference(problems.conv_bn, update="sync", micro_batches=4, workers=2, updates=20)
    for name, value in run.state.items():
        if "running" in name:
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, expected[name]), name


def test_dropout_in_processes_draws_what_serial_training_draws():
    same_as_the_reference(problems.dropout, update="ordered", staleness=0, workers=1, kind="processes", updates=20)


@pytest.mark.parametrize("update", SAME_BITS)
def test_draws_in_threads_are_refused_by_name(update):
    with pytest.raises(hogwild.NotReproducible, match=r"2 \(Dropout\).*torch's default generator.*kind='processes'"):
        problems.train(problems.dropout(), update=update, kind="threads")


class DrawsLate(nn.Module):
    """Draws only in some updates, which one trial step does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.net = problems.mlp()

    def forward(self, x):
        info = hogwild.worker_info()
        if info.update == 9:
            x = x + torch.rand_like(x)
        return self.net(x)


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_later_draw_in_threads_fails_the_run(update):
    with pytest.raises(hogwild.NotReproducible, match="was drawn from by update (8|9|10) or one that ran beside it"):
        problems.train(DrawsLate(), update=update, kind="threads")
    runs = [problems.train(DrawsLate(), update=update, kind="processes", workers=w, updates=12) for w in (1, 2)]
    assert runs[0].digest == runs[1].digest


def test_momentum_meets_staleness_with_a_warning():
    with pytest.warns(UserWarning, match="staleness 3 with SGD and its momentum"), warnings.catch_warnings():
        warnings.simplefilter("always")
        problems.train(update="ordered", staleness=3, compensation="none", optimizer=problems.MOMENTUM, updates=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems.train(update="ordered", staleness=3, optimizer=problems.SGD, updates=4)


@pytest.mark.parametrize(("update", "setting"), [("ordered", "staleness"), ("sync", "micro_batches")])
def test_more_workers_than_can_be_busy_are_refused_with_the_number_to_set(update, setting):
    with pytest.raises(hogwild.ArgumentError, match=rf"4 workers .*{setting}=\d"):
        problems.train(update=update, workers=4)


def test_every_update_is_computed_on_exactly_the_version_it_should():
    run = problems.train(update="ordered", staleness=3, workers=4, updates=30)
    assert run.journal["version_read"].tolist() == [max(0, u - 3) for u in range(30)]
    assert run.journal["update"].tolist() == list(range(30))
    assert run.staleness.set == run.staleness.max == 3


def test_snapshot_reads_whole_versions_that_exist():
    run = problems.train(update="snapshot", workers=3, kind="processes", updates=60)
    assert sorted(run.journal["update"]) == list(range(60))
    assert run.journal["version"].tolist() == list(range(1, 61))
    assert (run.journal["version_read"] < run.journal["version"]).all()


class Watching:
    """The worker with update 20 waits until the other one, which waits for it, has looked so many times in vain."""

    LOOKS = 20

    def __init__(self):
        self.seen = torch.zeros(3, dtype=torch.float64).share_memory_()  # who waited, seconds, and those of a core

    def __call__(self, hook, seat):
        words._YIELDS = 0  # of a wait that may be short
        if hook is Hook.COMPUTING and seat.ticket == 20:
            number = 1 - seat.index
            other = seat.control.row(number)
            within(60, lambda: other[Field.TICKET] == 22 and other[Field.WAITING] == LOOKING)
            process = other_process()
            began, computed, looks = time.monotonic(), process.cpu_times().user, other[Field.LOOKS]
            within(60, lambda: other[Field.LOOKS] > looks + self.LOOKS)
            computed = process.cpu_times().user - computed
            self.seen[:] = torch.tensor([number, time.monotonic() - began, computed])


def test_waiting_takes_no_core():
    """Who waits sleeps between two looks, for at least the shortest time that it sleeps, and computes little."""
    watching = Watching()
    with planted(watching):
        run = problems.train(update="ordered", staleness=1, recheck=0, kind="processes", workers=2)
    number, seconds, computed = watching.seen.tolist()
    assert seconds > Watching.LOOKS * (words._LONGEST_FORESEEN if Alarms.works else words._SHORTEST_SLEEP)
    assert run.workers[int(number)].waited_seconds > seconds
    assert computed < seconds / 2 or not Alarms.works
