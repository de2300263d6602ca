"""limit_updates: a run ends after so many updates whatever its length is, and its record says so."""

from __future__ import annotations

from functools import partial

import problems
import pytest
import torch

import hogwild
from hogwild.determinism.replay import replay


def trained(update: str = "ordered", **arguments) -> hogwild.Run:
    return problems.train(problems.mlp(), update=update, kind="threads", **arguments)


@pytest.mark.parametrize("update", ["ordered", "sync"])
@pytest.mark.parametrize("length", [{"epochs": 5}, {"updates": 90}])
def test_it_is_the_beginning_of_the_whole_run(update, length):
    limited = trained(update, limit_updates=7, **length)
    assert limited.updates == 7 and limited.stopped is None
    assert limited.digest == trained(update, updates=7).digest


def test_a_limit_that_is_not_reached_changes_nothing():
    assert trained(updates=5, limit_updates=9).digest == trained(updates=5).digest


def test_the_record_says_so_and_is_replayed(tmp_path):
    run = trained("snapshot", epochs=3, limit_updates=6, out=tmp_path / "run")
    saved = hogwild.load_run(tmp_path / "run")
    assert (saved.config.epochs, saved.config.limit_updates, saved.updates) == (3, 6, 6)
    assert saved.loss == pytest.approx(run.losses.mean())
    arguments = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
    assert replay(tmp_path / "run", **arguments, optimizer=problems.SGD).equal


def test_a_resumed_run_keeps_its_limit_unless_it_is_changed_on_purpose(tmp_path):
    trained(updates=12, limit_updates=6, checkpoint_every=3, out=tmp_path / "run")
    with pytest.raises(hogwild.ArgumentError, match="limit_updates is None, and the run in .* was made with 6"):
        trained(updates=12, resume=tmp_path / "run")
    on = trained(updates=12, limit_updates=6, resume=tmp_path / "run", change={"limit_updates": None})
    assert on.updates == 12 and on.digest == trained(updates=12).digest
    assert on.config.limit_updates is None


def warming_up(update: int) -> float:
    return min(1.0, (update + 1) / 30)


RISING = {
    "function": warming_up,
    "scheduler": partial(torch.optim.lr_scheduler.LinearLR, start_factor=0.01, total_iters=30),
}


@pytest.mark.parametrize("rising", RISING)
def test_a_schedule_is_looked_at_over_the_whole_run(rising, tmp_path):
    """What makes up for stale gradients hangs on the largest rate, which a limited run does not reach."""
    steep = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
    settings = {"optimizer": steep, "lr_schedule": RISING[rising], "staleness": 3, "epochs": 4}
    whole = trained(**settings)
    limited = {"limit_updates": 9, "checkpoint_every": 3, "out": tmp_path / "run"}
    begun = trained(**settings, **limited)
    assert whole.compensation and begun.compensation == whole.compensation
    assert begun.losses.tolist() == whole.losses[:9].tolist()
    on = trained(**settings, limit_updates=9, resume=tmp_path / "run", change={"limit_updates": None})
    assert on.digest == whole.digest


@pytest.mark.parametrize("rising", RISING)
def test_a_run_that_was_stopped_while_its_rate_rose_is_replayed(rising, tmp_path):
    steep = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
    settings = {"optimizer": steep, "lr_schedule": RISING[rising]}
    stopping = {"evaluate_every": 4, "evaluate": lambda model: {}, "stop": lambda progress: progress.updates >= 8}
    stopped = trained(**settings, **stopping, staleness=3, epochs=6, out=tmp_path / "run")
    assert stopped.stopped == "stop" and stopped.updates == 8
    arguments = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
    assert replay(tmp_path / "run", **arguments, **settings).equal
