"""A run whose loss has risen says so while it is made, and at its end; one that learns says nothing."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import Any

import numpy as np
import problems
import pytest
import torch
from rich.console import Console
from side_by_side import within
from torch import nn
from traits import NAMES

import hogwild
from hogwild.report.tables import run_report
from hogwild.run import divergence as module
from hogwild.run.divergence import WINDOW, divergence
from hogwild.shared.words import Hook
from hogwild.testing import planted
from hogwild.workers.seat import WorkerSeat

UPDATES = 400
GROWS: dict[str, Any] = {
    "optimizer": partial(torch.optim.SGD, lr=2.01),
    "compensation": "none",
    "on_nonfinite": "ignore",
}


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step of 2.01 takes every parameter a little farther to the other side of 0 than it was, where nobody races."""
    return 0.5 * sum(parameter.square().sum() for parameter in model.parameters())


GROWS["loss"] = squares


def losses(*parts: tuple[float, int], noise: float = 0.1) -> np.ndarray:
    levels = np.concatenate([np.full(count, level) for level, count in parts])
    return levels + noise * np.random.default_rng(0).standard_normal(len(levels))


def test_it_is_seen_where_the_last_losses_are_higher_than_the_first():
    found = divergence(losses((2.3, 250), (7.9, 250)))
    assert found is not None
    assert (found.update, found.window) == (500, WINDOW)
    assert (found.first, found.last) == (pytest.approx(2.3, abs=0.05), pytest.approx(7.9, abs=0.05))
    assert str(found).startswith("the loss has risen above where it began: 2.") and "before update 500" in str(found)


@pytest.mark.parametrize(
    "quiet",
    [
        losses((2.3, 250), (0.5, 250)),  # learns
        losses((2.3, 500)),  # stays
        losses((0.0, 500)),  # hovers, as an actor's loss does
        losses((2.3, 250), (2.35, 250), noise=1.0),  # higher, and no more than the losses differ
        losses((2.3, 250), (2.33, 250), noise=0.001),  # surely higher, and hardly
        losses((2.3, 40), (7.9, 40)),  # too few to tell
        np.full(500, np.nan),  # a loop of one's own that tells no loss
        np.zeros(0),
    ],
)
def test_it_is_not_seen_where_there_is_none(quiet):
    assert divergence(quiet) is None


def test_it_is_seen_where_the_loss_grew_within_the_first_window_already():
    at_once = np.concatenate([[1.13], np.geomspace(10, 1e30, 20), losses((50.0, 479), noise=5.0)])
    found = divergence(at_once)
    assert found is not None
    assert str(found).startswith("the loss has risen above where it began: 1.13 over the first update, 50")
    lost = np.concatenate([[1.13], np.full(499, np.nan)])
    assert "1.13 over the first update, nan" in str(divergence(lost))
    assert divergence(np.concatenate([[-1.0], losses((0.0, 499), noise=5.0)])) is None, "a loss that may be anything"


def test_noise_alone_is_taken_for_it_by_hardly_any_run():
    draws = np.random.default_rng(1)
    seen = sum(divergence(1 + 0.5 * draws.standard_normal(500)) is not None for _ in range(2000))
    assert seen < 10  # three standard errors are passed in 1.35 of 1,000 runs


def test_losses_of_both_infinities_are_told_without_a_warning():
    both = np.where(np.arange(500) % 2, np.inf, -np.inf)
    assert divergence(np.concatenate([np.full(250, 2.3), both])) is not None
    assert divergence(both) is None
    run = problems.train(updates=UPDATES, **{**GROWS, "loss": infinities})
    assert np.isnan(run.loss) and "0 over the first update, nan" in str(run.diverged)


def test_which_of_two_workers_commits_first_does_not_matter(monkeypatch, caplog):
    monkeypatch.setattr("hogwild.run.loss_watch._EVERY", 0.0)
    with planted(later):
        run = problems.train(update="snapshot", updates=UPDATES, **{**GROWS, "loss": infinities})
    assert run.journal["update"][0] > 0, "update 0 was to be committed late"
    assert "0 over the first update, nan" in str(run.diverged) and "0 over the first update, nan" in caplog.text


def later(hook: Hook, seat: WorkerSeat) -> None:
    """Update 0 is committed after a later one."""
    if hook is Hook.COMMITTING and seat.ticket == 0:
        within(60, lambda: len(seat.state.journal.rows()), "the other worker does not go past this one")


def infinities(model: nn.Module, batch: Any) -> torch.Tensor:
    """One and the other in turn from update 1 on, whatever the batch is."""
    update = hogwild.worker_info().update
    return squares(model, batch) * 0 + ((-1) ** update * float("inf") if update else 0.0)


def test_losses_that_are_no_longer_numbers():
    found = divergence(np.concatenate([np.full(250, 2.3), np.full(250, np.inf)]))
    assert found is not None and found.last == np.inf


@pytest.mark.parametrize("update", NAMES)
def test_a_run_says_so_once_in_its_log_and_in_its_record(update, tmp_path, caplog):
    run = problems.train(update=update, updates=UPDATES, workers=1, out=tmp_path, **GROWS)
    assert run.diverged is not None
    told = [record.message for record in caplog.records if "has risen above where it began" in record.message]
    assert len(told) == 1 and caplog.records[0].levelno == logging.WARNING
    assert json.loads((tmp_path / "run.json").read_text())["diverged"] == run.diverged
    console = Console(width=120, record=True, file=None)
    with console.capture() as shown:
        console.print(run_report(run))
    assert "the loss has risen above where it began" in " ".join(shown.get().split())


def test_what_would_help_depends_on_the_rule(caplog):
    for arguments, advice in (
        ({"update": "ordered"}, "compensation='auto', less"),
        ({"update": "sync"}, "; a lower learning rate or"),
    ):
        caplog.clear()
        problems.train(updates=UPDATES, **GROWS, **arguments)
        assert advice in caplog.text


def test_it_is_said_while_the_run_is_made(monkeypatch, caplog):
    """Long before the end: the run is stopped once it has been said."""
    monkeypatch.setattr("hogwild.run.loss_watch._EVERY", 0.0)

    def enough(progress: Any) -> bool:
        time.sleep(0.01)
        return "has risen above where it began" in caplog.text

    run = problems.train(updates=50_000, workers=1, **GROWS, evaluate_every=100, evaluate=lambda model: {}, stop=enough)
    assert run.stopped == "stop" and run.updates < 25_000


def test_a_run_that_learns_says_nothing(caplog):
    run = problems.train(updates=UPDATES)
    assert run.diverged is None and caplog.records == []
    assert module.divergence(run.losses) is None
