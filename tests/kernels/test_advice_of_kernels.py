"""What is said to help a run that goes wrong is something that a kernel has."""

from __future__ import annotations

import math

import kernels_made as made
import numpy as np
import pytest

import hogwild
from hogwild.errors import NonFiniteError

LOWER = "a lower learning rate or other initial weights may help"


def rises(tables, drawn, rate):
    made.step(tables, drawn, rate)
    return 1.0 + np.abs(tables["count"]).sum()


@pytest.mark.parametrize(
    ("settings", "helps"),
    [({"update": "ordered", "staleness": 3}, f"; less staleness, {LOWER}"), ({"update": "sync"}, f"; {LOWER}")],
    ids=["ordered", "sync"],
)
def test_a_loss_that_rises(settings, helps, caplog):
    kernel = made.kernel(step=rises)
    hogwild.train_kernel(made.Tables(), kernel, epochs=5, workers=1, kind="threads", **settings)
    (told,) = caplog.messages
    assert told.endswith(helps)


def draw(ticket, seed):
    return made.draw(ticket, seed) | {"last": ticket == 20}


def test_a_loss_that_is_not_finite():
    kernel = made.kernel(step=lambda tables, drawn, rate: math.nan if drawn["last"] else 1.0, draw=draw)
    helps = r"\(a lower learning rate or on_nonfinite='skip' may help\)$"
    with pytest.raises(NonFiniteError, match=helps):
        hogwild.train_kernel(made.Tables(), kernel, epochs=1, workers=1, kind="threads", update="ordered")
