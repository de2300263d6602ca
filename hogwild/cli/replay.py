"""`hogwild replay`: compute a recorded run again, and compare the bits."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from rich.console import Console
from tyro.conf import Positional, arg

from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.determinism.replay import replay
from hogwild.report.objects import to_json
from hogwild.report.progress import following
from hogwild.report.tables import replay_report


@dataclass(frozen=True)
class Replay:
    """Compute a recorded run again, one update after another, and say whether the bits are equal."""

    more: ClassVar[str] = (
        "A run under ordered, sync or snapshot leaves a journal that determines every bit of it.\n"
        "Exit status: 0 the bits are equal; 1 they differ; 2 the folder is not that of a whole, unchanged run."
    )

    run_dir: Annotated[Positional[Path], arg(metavar="RUN_DIR", help_behavior_hint="")]
    """The folder that a run was saved in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Replay and compare."""
        console = Console(stderr=True)
        with following(f"replay of {self.run_dir}", console, quiet=self.quiet) as progress:
            result = replay(self.run_dir, progress=progress)
        if self.json:
            sys.stdout.write(to_json({"run_dir": str(self.run_dir), **asdict(result)}) + "\n")
        else:
            Console().print(replay_report(str(self.run_dir), result))
        return DONE if result.equal else FAILED_CHECK
