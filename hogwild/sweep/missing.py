"""Runs of a sweep that have no folder: not begun yet, or failed before there was anything to save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirectoryError
from hogwild.sweep.plan import FILE, PlannedRun, read_plan


@dataclass(frozen=True)
class MissingRuns:
    """What a sweep lacks.

    Attributes:
        sweep: its folder.
        runs: those of its runs that have no folder there.
        planned: how many runs it is of.
    """

    sweep: Path
    runs: tuple[PlannedRun, ...]
    planned: int

    def to_dict(self) -> dict[str, Any]:
        """What `hogwild runs --json` has of it."""
        runs = [{"folder": run.folder, "settings": dict(run.settings)} for run in self.runs]
        return {"sweep": str(self.sweep), "planned": self.planned, "runs": runs}


def missing_runs(folders: Iterable[Path]) -> list[MissingRuns]:
    """What sweeps lack in some folders, at any depth, each named once. A damaged plan tells nothing."""
    plans = [plan for folder in folders for plan in sorted(folder.rglob(FILE)) if _is_seen(plan.relative_to(folder))]
    found = [_missing(plan.parent) for plan in {plan.resolve(): plan for plan in plans}.values()]
    return [one for one in found if one is not None]


def _is_seen(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)


def _missing(sweep: Path) -> MissingRuns | None:
    """What that sweep lacks; None where it is nothing."""
    try:
        plan = read_plan(sweep)
    except RunDirectoryError:
        return None  # `hogwild sweep --resume` says so
    runs = tuple(run for run in plan.runs if not (sweep / run.folder).is_dir())
    return MissingRuns(sweep, runs, len(plan.runs)) if runs else None
