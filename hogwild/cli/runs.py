"""`hogwild runs`: the runs in some folders, side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.status import DONE, as_typed
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import import_torch

_MORE = """Examples:
  hogwild runs                         the runs in the folder runs
  hogwild runs sweep --sort accuracy   the best first
  hogwild runs sweep --select accuracy which settings are best, over seeds
  hogwild runs --csv > runs.csv        for a spreadsheet

Only the settings that differ are shown.

Losses, errors and seconds are best when lowest, all else when highest."""


@dataclass(frozen=True)
class RunsCommand:
    """List runs side by side, with the settings that differ and what they came to."""

    more: ClassVar[str] = _MORE

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR", help_behavior_hint="(default: runs)")] = ()
    """Folders that hold runs, at any depth."""
    sort: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: by folder)")] = ""
    """Sort by a metric, loss, seconds, updates, samples_per_second or a setting, the best first."""
    select: Annotated[str, arg(metavar="METRIC", help_behavior_hint="")] = ""
    """Show instead which settings are best by this metric: its mean over seeds, with a 95 % interval."""
    lowest: Annotated[bool, arg(help_behavior_hint="")] = False
    """With --sort or --select: the lowest is the best."""
    highest: Annotated[bool, arg(help_behavior_hint="")] = False
    """With --sort or --select: the highest is the best."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the list as one JSON object, and nothing else, on standard output."""
    csv: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the list as CSV, all settings included."""

    def run(self) -> int:
        """Find, sort and list."""
        self._refuse_what_does_not_fit()
        import_torch()
        from hogwild.cli.output import show
        from hogwild.report.ranking import choices, not_ended, sorted_runs
        from hogwild.report.run_list import (
            and_missing,
            choices_csv,
            choices_report,
            run_list_csv,
            run_list_object,
            run_list_report,
        )
        from hogwild.run.saved.found import find_runs
        from hogwild.sweep.missing import missing_runs

        folders = self.folders or (default_folder(),)
        found = find_runs(folders)
        if self.sort:
            found = replace(found, runs=tuple(sorted_runs(found.runs, self.sort, lowest=self._lowest(self.sort))))
        lowest = self._lowest(self.select)
        chosen = choices(found.runs, self.select, lowest=lowest) if self.select else None
        if self.csv:
            sys.stdout.write(run_list_csv(found.runs) if chosen is None else choices_csv(chosen, self.select))
            return DONE
        as_here = [replace(run, why=as_typed(run.why)) for run in found.runs]
        report = run_list_report(replace(found, runs=tuple(as_here)), folders)
        if chosen is not None:
            report = choices_report(chosen, self.select, lowest=lowest, left=not_ended(found.runs, chosen))
        missing = missing_runs(folders)
        listed = run_list_object(found, folders, chosen, self.select, missing, lowest=lowest)
        show(listed, and_missing(report, missing), json=self.json)
        return DONE

    def _lowest(self, name: str) -> bool:
        from hogwild.report.ranking import low_is_good

        return self.lowest or (low_is_good(name) and not self.highest)

    def _refuse_what_does_not_fit(self) -> None:
        if self.json and self.csv:
            raise ArgumentError("--json and --csv given; choose one of them")
        if self.sort and self.select:
            raise ArgumentError("--sort and --select given; --select sorts by itself, the best first")
        if self.lowest and self.highest:
            raise ArgumentError("--lowest and --highest given; one of them says what is best")
        if (self.lowest or self.highest) and not (self.sort or self.select):
            flag = "--lowest" if self.lowest else "--highest"
            raise ArgumentError(f"{flag} given without --sort or --select, which say of what")


def default_folder() -> Path:
    """Where runs are saved by default.

    Raises:
        ArgumentError: there is none here.
    """
    folder = Path("runs")
    if not folder.is_dir():
        raise ArgumentError("there is no folder 'runs' here, where runs are saved by default; name the folder of some")
    return folder
