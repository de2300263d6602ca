"""What a command prints in the end."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, RenderableType

from hogwild.report.objects import to_json


def show(found: Any, report: RenderableType, *, json: bool) -> None:
    """On standard output: what was found as one JSON object and nothing else, or the report for a person."""
    if json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        Console().print(report)
