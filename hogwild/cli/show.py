"""`hogwild show`: one saved run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.status import DONE, as_typed
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import import_torch

_MORE = """Examples:
  hogwild show runs/a          what hogwild run said at its end, and its settings
  hogwild show runs/a --json   all of it

Of a run that trains, failed, or was killed: what became of it.

The files of a run that has ended are verified."""


@dataclass(frozen=True)
class ShowCommand:
    """Show one saved run: what it came to, its settings, where it was made."""

    more: ClassVar[str] = _MORE

    run_dir: Annotated[Positional[Path | None], arg(metavar="RUN_DIR", help_behavior_hint="")] = None
    """The folder that a run was saved in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print it as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Read, verify and show it."""
        if self.run_dir is None:
            raise ArgumentError("no run named; name the folder of one (hogwild runs lists them)")
        import_torch()
        from hogwild.cli.output import show
        from hogwild.report.shown import saved_run_object, saved_run_report
        from hogwild.run.saved.found import the_run_in
        from hogwild.run.saved.record import saved_run

        found = the_run_in(self.run_dir)
        run = saved_run(self.run_dir) if found.recorded else None
        as_here = replace(found, why=as_typed(found.why))
        show(saved_run_object(found, run), saved_run_report(as_here, run), json=self.json)
        return DONE
