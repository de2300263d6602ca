"""What a run of a sweep has come to, as its directory says; the rows of the sweep's table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirectoryError, printable
from hogwild.run.saved.found import best_in
from hogwild.run.saved.record import has_ended
from hogwild.sweep.plan import PlannedRun, SweepPlan

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


@dataclass(frozen=True)
class SweepRow:
    """A run of a sweep.

    Attributes:
        folder: the name of its directory in the sweep's.
        settings: those that differ between the runs.
        status: waiting, running, done or failed.
        updates, total: how many are made, and of how many.
        metrics: of the last evaluation; the training loss where none of them is called `loss`.
        seconds: of training; None where it is not known.
        digest: of the final state; empty before it is done.
        best: metric, update, value and digest of the version that was kept as the best; empty where none was.
        error: what it failed by.
        loss: of the training, as `Run.loss`; None before it is done.
    """

    folder: str
    settings: Mapping[str, Any]
    status: str = WAITING
    updates: int = 0
    total: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float | None = None
    digest: str = ""
    best: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `hogwild sweep --json` has of it."""
        return {
            "folder": self.folder,
            "settings": dict(self.settings),
            "status": self.status,
            "updates": self.updates,
            "metrics": dict(self.metrics),
            "loss": self.loss,
            "best": dict(self.best) or None,
            "digest": self.digest or None,
            "seconds": self.seconds,
            "error": self.error or None,
        }


def with_loss(metrics: Mapping[str, float | None], loss: float | None) -> dict[str, float | None]:
    """The metrics of an evaluation, and the training loss where none of them is called so."""
    return {**metrics, "loss": metrics.get("loss", loss)}


def row_of(folder: Path, run: PlannedRun) -> SweepRow:
    """The row of a run in the sweep's folder: done where it has ended there, else waiting."""
    row = SweepRow(run.folder, run.settings)
    path = folder / run.folder
    try:
        if not path.is_dir() or not has_ended(path):
            return row
        found = json.loads((path / "run.json").read_text(encoding="utf-8"))
        return SweepRow(
            run.folder,
            run.settings,
            DONE,
            updates=found["updates"],
            total=found["updates"],
            metrics=with_loss(found["metrics"], found["loss"]),
            loss=found["loss"],
            seconds=found["seconds"],
            digest=found["digest"],
            best=best_in(found.get("best")),
        )
    except (RunDirectoryError, OSError, ValueError, KeyError, TypeError):
        return row  # it is done again


def failed_row(row: SweepRow, error: str) -> SweepRow:
    """The row of a run that failed by that."""
    return SweepRow(row.folder, row.settings, FAILED, row.updates, row.total, error=printable(error, 500))


def rows_of(folder: Path, plan: SweepPlan) -> list[SweepRow]:
    """The rows of all runs of a sweep."""
    return [row_of(folder, run) for run in plan.runs]
