"""What the tests of the commands share."""

from __future__ import annotations

import pytest
from offered import Offer

from hogwild import experiment
from hogwild.experiment import Experiment


@pytest.fixture(scope="session", autouse=True)
def commands_draw(fonts: None) -> None:
    """Most commands save a figure."""


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install an experiment for the length of a test."""

    def installed(found: Experiment) -> None:
        monkeypatch.setattr(experiment, "names", lambda: [found.name])
        monkeypatch.setattr(experiment, "load", lambda name: found)

    return installed
