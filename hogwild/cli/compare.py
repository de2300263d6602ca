"""`hogwild compare`: two recorded runs, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.status import DONE
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import import_torch

_MORE = """Examples:
  hogwild compare runs/a runs/b

As recorded: settings, environment, results, and where the bits first differ.

Exit status 0, whether they differ or not; --json says so in "identical"."""


@dataclass(frozen=True)
class CompareCommand:
    """Say what differs between two runs: settings, environment, results and bits."""

    more: ClassVar[str] = _MORE

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN_A RUN_B", help_behavior_hint="")] = ()
    """The folders that two runs were saved in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the comparison as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Compare and report."""
        if len(self.runs) != 2:
            given = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
            raise ArgumentError(f"{given} named; hogwild compare takes two (hogwild runs lists them)")
        for path in self.runs:
            if path.is_file():
                raise ArgumentError(
                    f"{path} is a file, and runs are folders; hogwild.distance(a, b) compares states in files"
                )
        import_torch()
        from hogwild.cli.output import show
        from hogwild.determinism.two_runs import compare_runs
        from hogwild.report.side_by_side import comparison_report

        found = compare_runs(*self.runs)
        show(found.to_dict(), comparison_report(found), json=self.json)
        return DONE
