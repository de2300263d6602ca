"""`hogwild report`: one HTML file to look at, made of what was saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.runs import default_folder
from hogwild.cli.status import DONE
from hogwild.errors import ArgumentError
from hogwild.workers.process.early import import_torch

_MORE = """Examples:
  hogwild report runs/digits-…              one run, at length
  hogwild report sweep -o sweep.html        runs side by side
  hogwild report runs/check-digits-…        how far runs diverge
  hogwild report bench.json                 what hogwild bench --save wrote

Each path is a run, a folder of runs, a saved check or a saved bench.

The file needs no network. Made with the extra: pip install 'hogwild[report]'"""


@dataclass(frozen=True)
class ReportCommand:
    """Make one HTML file to look at, of runs, sweeps, checks and benches."""

    more: ClassVar[str] = _MORE

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUNS", help_behavior_hint="(default: runs)")] = ()
    """Runs, folders of runs, saved checks and benches."""
    out: Annotated[
        Path,
        arg(metavar="FILE", aliases=["-o"], help_behavior_hint="(default: report.html)", help="The file to write."),
    ] = Path("report.html")
    metric: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: the first)")] = ""
    """The metric that runs are compared by."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print what was made as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Read, draw and write."""
        if self.out.suffix not in (".html", ".htm"):
            raise ArgumentError(f"out {str(self.out)!r} does not end with .html; report.html does")
        if not self.out.absolute().parent.is_dir():
            raise ArgumentError(f"out {str(self.out)!r} is not a file in a folder that exists")
        import_torch()
        from rich.text import Text

        from hogwild import __version__
        from hogwild.cli.output import show
        from hogwild.report.page.given import read_given
        from hogwild.report.page.page import page_of, refuse_without_plotly, sections_of, write_page
        from hogwild.report.words import size

        refuse_without_plotly()
        paths = self.runs or (default_folder(),)
        given = read_given(paths)
        sections = sections_of(given, self.metric)
        made_by = f"hogwild {__version__} · hogwild report {' '.join(map(str, paths))}"
        write_page(page_of(sections, made_by), self.out)
        number = self.out.stat().st_size
        found = {
            "out": str(self.out),
            "bytes": number,
            "runs": len(given.runs),
            "checks": len(given.checks),
            "benches": len(given.benches),
            "sections": [{"kind": one.kind, "title": one.title, "verdict": one.verdict} for one in sections],
        }
        told = Text.assemble(*(part for one in sections for part in ((f"{one.title}: ", "bold"), f"{one.verdict}\n")))
        show(found, told.append(f"written to {self.out}, {size(number)}", "dim"), json=self.json)
        return DONE
