"""What a page is made of: sections, each with a verdict, facts, figures and tables. All text is
unescaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hogwild.report.page.figures import Plot

_NUMBER = re.compile(r"[-+±−–×÷()\d.,%\s]*(e[-+]?\d+)?( (s|ms|min|h|bytes|[KMGT]iB))?( at [\d,]+)?")


@dataclass(frozen=True)
class Drawing:
    """A figure and the words around it.

    Attributes:
        title: what it shows.
        caption: in a sentence or two, what one sees.
        plot: the drawing itself.
        wide: it takes the whole width of the page.
    """

    title: str
    caption: str
    plot: Plot
    wide: bool = False


@dataclass(frozen=True)
class DataTable:
    """A table; columns of numbers stand to the right.

    Attributes:
        title: what it lists.
        headings: of the columns.
        rows: the cells.
        strong: numbers of the rows that stand out.
        folded: shown only when somebody asks.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Sequence[int] = ()
    folded: bool = False
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether all that stands in it are numbers, perhaps with a unit, or with their update."""
        return [all(_NUMBER.fullmatch(row[place]) for row in self.rows) for place in range(len(self.headings))]


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        kind: what it is about: run, runs, check or bench.
        title: its heading.
        about: a line below it.
        verdict: what it comes to, in words; None where nothing is judged.
        good: how the verdict is coloured; None is neither good nor bad.
        facts: the few numbers that matter: (name, value).
        lines: findings: (what, finding).
        drawings, tables: in their order.
        notes: what else must be said, a line each.
    """

    kind: str
    title: str
    about: str
    verdict: str
    good: bool | None = None
    facts: Sequence[tuple[str, str]] = ()
    lines: Sequence[tuple[str, str]] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[DataTable] = ()
    notes: Sequence[str] = ()


def paired(drawings: Sequence[Drawing]) -> list[Drawing]:
    """The same drawings; one that would stand alone in its half of the page takes all of it."""
    found: list[Drawing] = []
    waiting = False  # for a neighbour
    for drawing in drawings:
        if drawing.wide and waiting:
            found[-1] = replace(found[-1], wide=True)
        waiting = not drawing.wide and not waiting
        found.append(drawing)
    if waiting:
        found[-1] = replace(found[-1], wide=True)
    return found
