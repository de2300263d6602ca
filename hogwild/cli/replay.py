"""`hogwild replay`: compute a recorded run again, and compare the bits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import import_torch


@dataclass(frozen=True)
class ReplayCommand:
    """Compute a recorded run again, update by update, and compare the bits."""

    more: ClassVar[str] = (
        "For runs whose journal determines every bit; hogwild list tells which rules.\n\n"
        "Exit status:\n"
        "  0      the bits are equal\n"
        "  1      they differ\n"
        "  2      the folder is not that of a whole, unchanged run"
    )

    run_dir: Annotated[Positional[Path | None], arg(metavar="RUN_DIR", help_behavior_hint="")] = None
    """The folder that a run was saved in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Replay and compare."""
        if self.run_dir is None:
            raise ArgumentError("no run named; a run says at its end in which folder it is saved, usually in runs/")
        import_torch()
        from hogwild.cli.output import show
        from hogwild.determinism.replay import replay
        from hogwild.report.progress import following
        from hogwild.report.tables import replay_report
        from hogwild.report.terminal import terminal

        console = terminal(stderr=True)
        with following(lambda _kind: f"replay of {self.run_dir}", console, quiet=self.quiet) as progress:
            result = replay(self.run_dir, progress=progress)
        found = {"run_dir": str(self.run_dir), **asdict(result)}
        show(found, replay_report(str(self.run_dir), result), json=self.json)
        return DONE if result.equal else FAILED_CHECK
