"""`hogwild.train` leaves the bits of the reference, and the reference is sharp: any other meaning has other bits."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np
import problems
import pytest
import torch
from optimizers import OPTIMIZERS, everything, everything_loss
from torch import nn
from torch.nn.functional import cross_entropy

import hogwild
from hogwild import reference
from hogwild.rules import NAMES
from hogwild.testing import Hook, RandomDelays, planted
from hogwild.workers.planting import both

pytestmark = pytest.mark.filterwarnings("ignore:staleness")

SETTINGS = {
    "racing": {"update": "racing"},
    "hogwild": {"update": "hogwild"},
    "locked": {"update": "locked"},
    "snapshot": {"update": "snapshot"},
    "ordered, 0": {"update": "ordered", "staleness": 0},
    "ordered, 1": {"update": "ordered", "staleness": 1, "workers": 2},
    "ordered, 3": {"update": "ordered", "staleness": 3, "workers": 2},
    "ordered, 1, compensated": {"update": "ordered", "staleness": 1, "workers": 2, "compensation": "auto"},
    "ordered, 3, compensated": {"update": "ordered", "staleness": 3, "workers": 2, "compensation": "auto"},
    "sync, 1": {"update": "sync", "micro_batches": 1},
    "sync, 2": {"update": "sync", "micro_batches": 2, "workers": 2},
    "sync, 3": {"update": "sync", "micro_batches": 3, "workers": 2},
}
by_rule = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def for_20_updates(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with a length where they say none."""
    return settings if "epochs" in settings else {"updates": 20} | settings


def by_reference(model: nn.Module, **settings: Any) -> str:
    """The digest of the model that the reference trains."""
    problems.train_serially(model, **for_20_updates(settings))
    return hogwild.digest(model)


def same_bits(make: Any, *, workers: int = 1, kind: str = "threads", **settings: Any) -> hogwild.Run:
    """Train by workers and by the reference, and compare every bit of the model and of the losses."""
    settings, model = for_20_updates(settings), make()
    run = problems.train(make(), workers=workers, kind=kind, **settings)
    if settings["update"] == "snapshot":
        settings["journal"] = run.journal[["update", "version_read"]].tolist()
    losses = problems.train_serially(model, **settings)
    assert run.digest == hogwild.digest(model) != hogwild.digest(make())
    assert run.journal["loss"].tolist() == losses
    return run


def norms() -> nn.Module:
    """A BatchNorm that a forward pass goes through twice, one with cumulative averages, and an InstanceNorm, which
    does not count its passes."""
    torch.manual_seed(0)
    norm, every = nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None)
    instance = nn.InstanceNorm1d(2, track_running_stats=True)
    layers = norm, instance, nn.ReLU(), norm, every
    return nn.Sequential(nn.Unflatten(1, (2, 4)), *layers, nn.Flatten(), nn.Linear(8, 3))


class OtherBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(8))
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("left", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = 0.5 * self.seen + x.mean(0)
        self.passes += 2
        self.flag = ~self.flag
        return self.layer(x + self.seen + self.left)


# --- rules, optimizers, models


@pytest.mark.parametrize("update", NAMES)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "adafactor", "adagrad"])
def test_every_rule_with_every_optimizer(update, optimizer):
    workers = 2 if update in ("ordered", "sync", "snapshot") else 1
    same_bits(problems.mlp, update=update, optimizer=OPTIMIZERS[optimizer], workers=workers)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "nesterov", "decay alone", "adam", "adam with decay", "adamw"]
)
def test_compensation_with_every_optimizer_that_it_is_for(optimizer, staleness):
    setting = {"update": "ordered", "staleness": staleness, "compensation": "auto", "optimizer": OPTIMIZERS[optimizer]}
    run = same_bits(problems.mlp, workers=min(2, staleness + 1), **setting)
    plain = problems.train(problems.mlp(), workers=1, updates=20, **setting | {"compensation": "none"})
    small = optimizer in ("sgd", "decay alone") and staleness == 1  # steps of 0.1
    assert bool(run.compensation) == (run.digest != plain.digest) == (staleness > 0 and not small)


@by_rule
@pytest.mark.parametrize("model", [norms, OtherBuffers])
def test_buffers(setting, model):
    same_bits(model, optimizer=problems.MOMENTUM, **setting)


@by_rule
def test_tied_frozen_and_missing(setting):
    """Two dtypes too, and a branch of which some batches say nothing: `racing` steps it all the same, by zero."""
    same_bits(everything, loss=everything_loss, optimizer=problems.ADAM, **setting)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_whose_curvature_is_not_measured(dtype):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return cross_entropy(model(x.to(dtype)), y)

    optimizer, setting = partial(torch.optim.SGD, lr=0.02), SETTINGS["ordered, 3, compensated"]
    run = same_bits(lambda: problems.mlp().to(dtype), loss=loss, optimizer=optimizer, **setting)
    assert run.curvature is None and run.compensation


@pytest.mark.parametrize("update", ["racing", "ordered", "sync"])
def test_float64(update):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return cross_entropy(model(x.double()), y)

    same_bits(lambda: problems.mlp().double(), loss=loss, optimizer=problems.MOMENTUM, update=update)


# --- losses, schedules, clipping, data


def listed(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    return list(streamed(model, batch))


def streamed(model: nn.Module, batch: Any):
    """Two losses of other samples, and one of which only the last layer knows."""
    x, y = batch
    for part in range(2):
        yield cross_entropy(model(x[part::2]), y[part::2])
    yield 0.1 * model[-1].weight.square().sum()


@pytest.mark.parametrize(
    ("update", "loss"),
    [*((update, streamed) for update in NAMES), *((update, listed) for update in ("racing", "ordered", "sync"))],
)
def test_losses_in_parts(update, loss):
    same_bits(problems.conv_bn, loss=loss, update=update)


@by_rule
def test_whole_epochs_with_a_schedule_and_clipping(setting):
    """200 samples are 7 batches of 27 and one of 11; 24 batches are 4 updates of 5 and one of 4."""
    options = {"lr_schedule": lambda number: 1 / (1 + number), "clip_grad_norm": 0.05, "seed": 5, "batch_size": 27}
    setting = setting | {"micro_batches": 5}
    run = same_bits(problems.conv_bn, epochs=3, optimizer=problems.ADAM, **options, **setting)
    assert run.updates == (5 if setting["update"] == "sync" else 24)


@pytest.mark.parametrize("update", ["hogwild", "ordered", "sync"])
def test_in_order(update):
    same_bits(problems.mlp, update=update, shuffle=False)


@pytest.mark.parametrize("update", ["hogwild", "ordered", "sync"])
def test_whole_batches_alone(update):
    run = same_bits(problems.mlp, update=update, drop_last=True, batch_size=27, epochs=4)
    assert (run.samples, run.updates) == (4 * 7 * 27, 14 if update == "sync" else 28)


class Noisy:
    """A source that draws from everything there is."""

    def __len__(self) -> int:
        return 5

    def batch(self, update: int, generator: torch.Generator) -> Any:
        y = torch.randint(0, 3, (9,), generator=generator)
        torch_, numpy_, python = torch.randn(9, 8), torch.tensor(np.random.rand(9, 1)).float(), random.random()
        return torch_ + numpy_ + python + y[:, None], y


@by_rule
def test_in_processes_with_draws(setting):
    same_bits(problems.dropout, kind="processes", data=Noisy(), epochs=4, **setting)


def overtaken(hook, seat):
    """The first update is computed until the other worker has made one: else, on a busy machine, one may make all."""
    deadline = time.monotonic() + 60
    while hook is Hook.COMPUTING and seat.ticket == 0 and seat.tickets_handed_out < 3 and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_journal_of_snapshot(kind):
    """The learning rate goes by the number of the update, not by the version it makes."""
    schedule = {"lr_schedule": lambda number: 1 + number % 3}
    with planted(both(overtaken, RandomDelays(seed=1))):
        run = same_bits(problems.conv_bn, update="snapshot", workers=2, kind=kind, updates=100, **schedule)
    assert run.staleness.max > 0


# --- the reference itself


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ({"update": "ordered", "staleness": 1}, {"staleness": 0}),
        ({"update": "ordered", "staleness": 1}, {"staleness": 2}),
        ({"update": "sync", "micro_batches": 2}, {"micro_batches": 3}),
        ({"update": "sync", "micro_batches": 2}, {"update": "hogwild"}),
        ({}, {"seed": 1}),
        ({}, {"shuffle": False}),
        ({}, {"batch_size": 15}),
        ({}, {"drop_last": True}),
        ({"accumulate": 2}, {"accumulate": 3}),
        ({"update": "sync", "accumulate": 2}, {"accumulate": 1, "micro_batches": 4}),
        ({}, {"updates": 19}),
        ({}, {"loss": listed}),
        ({}, {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=1e-3)}),
        ({"lr_schedule": lambda number: 1 / (1 + number)}, {"lr_schedule": lambda number: 1 / (2 + number)}),
        ({"clip_grad_norm": 0.05}, {"clip_grad_norm": 0.051}),
        ({"journal": [(k, 0) for k in range(9)]}, {"journal": [(k, k // 8) for k in range(9)]}),
        ({"journal": [(0, 0), (1, 1), (2, 2)]}, {"journal": [(0, 0), (2, 1), (1, 2)]}),
    ],
    ids=lambda settings: ", ".join(settings) or "plain",
)
def test_another_meaning_has_other_bits(setting, other):
    assert by_reference(problems.mlp(), **setting) != by_reference(problems.mlp(), **(setting | other))


@pytest.mark.parametrize(
    ("name", "wrong", "model", "setting"),
    [
        ("_rebased", lambda model, before, after, base: after, problems.conv_bn, SETTINGS["ordered, 1"]),
        ("_rebased", lambda model, before, after, base: after, problems.conv_bn, SETTINGS["sync, 2"]),
        ("_shared", lambda update, part, trained: part, everything, SETTINGS["racing"]),
        ("_mean", lambda parts: reference_mean(parts[::-1]), problems.mlp, SETTINGS["sync, 3"]),
        ("_mean", lambda parts: parts[-1], problems.mlp, SETTINGS["sync, 2"]),
        ("_seeded", lambda number: reference_seeded(number + 1), problems.dropout, SETTINGS["ordered, 1"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_in_it_has_other_bits(name, wrong, model, setting, monkeypatch):
    settings = {key: value for key, value in setting.items() if key != "workers"} | {"optimizer": problems.ADAM}
    if model is everything:
        settings["loss"] = everything_loss
    right = by_reference(model(), **settings)
    monkeypatch.setattr(reference, name, wrong)
    assert by_reference(model(), **settings) != right


reference_mean, reference_seeded = reference._mean, reference._seeded


def test_it_is_the_loop_that_everybody_writes():
    """Not a line of it is the reference's, so that the two do not err alike."""
    x, y = problems.data()
    model, order = problems.mlp(), hogwild.Schedule(len(x), 16)
    stepper = problems.MOMENTUM(model.parameters())
    for number in range(20):
        rows = order.indices(number)
        stepper.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        stepper.step()
    assert by_reference(problems.mlp(), optimizer=problems.MOMENTUM) == hogwild.digest(model)


def test_it_leaves_nothing_behind():
    model, generators = problems.dropout(), (torch.get_rng_state(), np.random.get_state(), random.getstate())
    by_reference(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert np.array_equal(np.random.get_state()[1], generators[1][1])
    assert random.getstate() == generators[2]


def test_a_rule_that_does_not_exist_is_no_rule():
    with pytest.raises(KeyError, match="orderd"):
        by_reference(problems.mlp(), update="orderd")
