"""What the tests of the commands share."""

from __future__ import annotations

import pytest
from offered import Offer

from hogwild import experiment
from hogwild.cli import running
from hogwild.experiment import Experiment


@pytest.fixture
def figures(fonts: None) -> None:
    """For tests that look at the figure of a run."""


@pytest.fixture(autouse=True)
def nobody_looks_at_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process goes without one, as where there is no matplotlib, unless its test asks for `figures`."""
    if "figures" not in request.fixturenames:
        monkeypatch.setattr(running, "can_plot", lambda: False)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install an experiment for the length of a test."""

    def installed(found: Experiment) -> None:
        monkeypatch.setattr(experiment, "names", lambda: [found.name])
        monkeypatch.setattr(experiment, "load", lambda name: found)

    return installed
