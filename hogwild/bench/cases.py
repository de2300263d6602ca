"""What tables of measurements share: how they are ruled, and a report of one table, or some, for each case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
_ANY_WIDTH = 10_000  # columns of a window that no table needs


def ruled_table(*, tight: bool = True, wide: bool = False) -> Table:
    """A table without columns yet: `tight` has one space between columns, and two where it is not; `wide` fills the
    window."""
    return Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=tight, show_edge=False, expand=wide, header_style="dim"
    )


def width_of(table: Table, console: Console, options: ConsoleOptions) -> int:
    """The letters that a table is wide where there is room for all of it."""
    return table.__rich_measure__(console, options.update(max_width=_ANY_WIDTH)).maximum


def by_case(
    found: Mapping[str, Any], line: str, rows: Sequence[Row], tables: Callable[[Sequence[Row]], Iterable[Table]]
) -> list[RenderableType]:
    """The machine, a line about the measurement, what warns, the tables of each case, and what was refused."""
    machine = found["machine"]
    head = f"{machine['processor']} · {machine['cores']} cores · Python {machine['python']} · torch {machine['torch']}"
    parts: list[RenderableType] = [Text(head, "bold"), Text(line)]
    parts.extend(Text(f"warning: {line}", "yellow") for line in found["warnings"])
    for case in dict.fromkeys(row["case"] for row in rows):
        parts.extend([Text(), Text(case, "bold"), *tables([row for row in rows if row["case"] == case])])
    parts.extend(Text(f"refused: {line}", "dim") for line in found["refused"])
    return parts
