"""compensation="workers": rules without a fixed staleness make up for gradients that are workers − 1 updates old."""

from __future__ import annotations

import time

import problems
import pytest
import torch
from torch import nn
from traits import KINDS

import hogwild
from hogwild.errors import ArgumentError
from hogwild.rules.any_age import AnyAge
from hogwild.rules.registry import names_where, refuse_idle

ANY_AGE = names_where(lambda rule: issubclass(rule, AnyAge))
WORKERS = 8


def test_it_is_for_rules_that_read_what_others_may_write_meanwhile():
    assert ANY_AGE == ("hogwild", "locked", "snapshot")


def rings(seed):
    """Points of four rings, and which ring each is of."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (1024,), generator=generator)
    angles = 6.2832 * torch.rand(1024, generator=generator)
    radii = labels + 1 + 0.1 * torch.randn(1024, generator=generator)
    return radii[:, None] * torch.stack([angles.cos(), angles.sin()], 1), labels


def late(model, batch):
    """The loss, where the gradient is a wait, so that all other workers step in between."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    time.sleep(1e-3)
    return loss


def accuracy(update, workers, compensation, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    settings = {"kind": "threads", "batch_size": 16, "epochs": 12, "on_nonfinite": "ignore"}
    hogwild.train(
        model,
        rings(1),
        late,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9),
        update=update,
        workers=workers,
        compensation=compensation,
        seed=seed,
        **settings,
    )
    points, labels = rings(2)
    return float((model(points).argmax(1) == labels).float().mean())


@pytest.mark.filterwarnings("ignore:8 workers share")
@pytest.mark.parametrize("update", ANY_AGE)
def test_momentum_that_does_not_learn_with_eight_workers_learns_as_serially(update):
    serial = accuracy(update, 1, "none")
    assert serial > 0.9
    assert accuracy(update, WORKERS, "none") < serial - 0.3
    assert accuracy(update, WORKERS, "workers") > serial - 0.05


@pytest.mark.parametrize("update", ANY_AGE)
def test_one_worker_steps_as_ever(update):
    with_it, without = (
        problems.train(problems.mlp(), update=update, workers=1, compensation=one, optimizer=problems.MOMENTUM)
        for one in ("workers", "none")
    )
    assert with_it.digest == without.digest
    assert with_it.compensation == ()


def test_it_tells_what_it_changed_for_that_many_workers():
    run = problems.train(
        problems.mlp(), update="locked", workers=4, compensation="workers", optimizer=problems.MOMENTUM
    )
    assert any("0.975" in one for one in run.compensation), run.compensation


def test_its_steps_are_as_short_as_where_no_curvature_is_known_for_some_gradients_are_older():
    arguments = {"workers": 4, "optimizer": lambda named: torch.optim.SGD(named, lr=0.02, momentum=0.95)}
    race = problems.train(problems.mlp(), update="locked", compensation="workers", **arguments)
    fixed = problems.train(problems.mlp(), update="ordered", staleness=3, **arguments)
    assert race.curvature == fixed.curvature is not None
    assert "lr 0.02 → 0.0025" in race.compensation
    assert "lr 0.02 → 0.0025" not in fixed.compensation


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_by_whole_versions_is_replayed_to_the_bit(kind, tmp_path):
    model, settings = problems.mlp(), {"workers": 3, "kind": kind, "optimizer": problems.MOMENTUM}
    problems.train(model, update="snapshot", compensation="workers", out=tmp_path / "run", **settings)
    run = hogwild.load_run(tmp_path / "run")
    assert run.compensation
    again = hogwild.replay(
        tmp_path / "run",
        model=problems.mlp(),
        data=problems.data(),
        loss=problems.cross_entropy,
        optimizer=problems.MOMENTUM,
    )
    assert again.equal


@pytest.mark.parametrize("update", ANY_AGE)
def test_auto_is_refused_where_the_age_is_not_fixed(update):
    with pytest.raises(ArgumentError, match="'workers' takes them to be workers - 1 updates old"):
        refuse_idle({"compensation": "auto"}, update)
    refuse_idle({"compensation": "workers"}, update)
    refuse_idle({"compensation": "auto"}, "ordered")


def test_workers_is_refused_where_it_is_or_where_nothing_is_made_up_for():
    with pytest.raises(ArgumentError, match="'workers' is not for ordered, which knows τ"):
        problems.train(problems.mlp(), update="ordered", compensation="workers")
    with pytest.raises(ArgumentError, match="'hogwild', 'locked', 'snapshot' and 'ordered' have it"):
        refuse_idle({"compensation": "workers"}, "sync")
