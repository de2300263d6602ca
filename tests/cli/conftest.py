"""What the tests of the commands share."""

from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure


@pytest.fixture(scope="session", autouse=True)
def fonts() -> None:
    """matplotlib keeps the files of the fonts that it has used open."""
    drawn = Figure()
    drawn.suptitle("bold", weight="bold")
    drawn.add_subplot().plot([1.0, 1e6])
    drawn.axes[0].set_yscale("log")
    drawn.savefig(io.BytesIO())
