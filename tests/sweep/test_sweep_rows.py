"""What the row of a run in a sweep says of it."""

from __future__ import annotations

from collections.abc import Mapping

import problems
import pytest

from hogwild.sweep.plan import PlannedRun
from hogwild.sweep.rows import DONE, row_of


@pytest.mark.parametrize("evaluated", [{"accuracy": 0.5}, {"accuracy": 0.5, "loss": 7.0}])
def test_an_evaluated_loss_is_not_taken_for_that_of_the_training(evaluated: Mapping[str, float], tmp_path):
    run = problems.train(updates=4, evaluate=lambda model: dict(evaluated), out=tmp_path / "a")
    row = row_of(tmp_path, PlannedRun("a", {}, run.config))
    assert row.status == DONE and row.loss == run.loss
    assert row.metrics == {"loss": run.loss, **evaluated}
    assert row.to_dict()["loss"] == run.loss and row.to_dict()["metrics"] == row.metrics
