"""What the tests of the commands share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def commands_draw(fonts: None) -> None:
    """Most commands save a figure."""
