"""What curves show of a loss: means that one spike does not spoil; and what is said of a loss that has diverged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import problems
import pytest

from hogwild import Run
from hogwild.report.page.of_run import run_section
from hogwild.report.smoothed import smoothed_loss
from hogwild.run.saved.found import DONE, FoundRun


@pytest.fixture(scope="module")
def run() -> Run:
    return problems.train(update="ordered", updates=400)


def with_losses(run: Run, losses: np.ndarray) -> Run:
    journal = run.journal.copy()
    journal["loss"] = losses
    return replace(run, journal=journal)


def test_a_spike_spoils_the_means_around_it_alone(run: Run) -> None:
    losses = np.linspace(1.0, 0.1, 400)
    losses[100] = 1e30
    at, means, width = smoothed_loss(with_losses(run, losses))
    assert width == 8 and (means >= 1e20).sum() == width
    after = at > 110
    assert np.allclose(means[after], np.interp(at[after], np.arange(1, 401), losses))


@pytest.mark.parametrize("last", [50.0, np.nan])
def test_the_page_of_a_run_that_diverged_says_so(last: float, run: Run) -> None:
    losses = np.full(400, last)
    losses[:300] = np.linspace(1.0, 0.5, 300)
    broken = with_losses(run, losses)
    section = run_section(FoundRun(Path("run"), DONE), broken)
    assert section.good is False and "But the loss has risen above where it began: " in section.verdict
    curve = next(drawing for drawing in section.drawings if drawing.title == "Loss over updates")
    assert "diverged" in curve.caption and "fell" not in curve.caption
    healthy = run_section(FoundRun(Path("run"), DONE), run)
    assert healthy.good is None and "risen" not in healthy.verdict
