"""Two benches compared, as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import ruled_table
from hogwild.bench.then_and_now import FASTER, NOISE, SLOWER, BenchComparison, SpeedChange, only_in
from hogwild.errors import printable

_STYLES = {SLOWER: "bold red", FASTER: "green", NOISE: ""}
_NOTE = (
    "then, now: × the serial loop of the same repeat, median. now ÷ then: of the medians; its range is from the worst "
    "now over the best then to the best now over the worst then. Within the noise: the ranges then and now overlap."
)


def bench_comparison_report(found: BenchComparison, file: str) -> RenderableType:
    """What changed since a saved bench, a table a case; and what makes the two hard to compare."""
    when = f", saved {found.then.when}" if found.then.when else ""
    parts: list[RenderableType] = [Text(f"compared with {file}{when}", "bold"), *_cautions(found)]
    for case in dict.fromkeys(change.case for change in found.changes):
        serial = found.serial(case)
        itself = "" if serial is None else f" · the serial loop itself does {serial:.2f} × the samples/s of then"
        parts += [Text(), Text.assemble((case, "bold"), itself), _table(found, case)]
    parts += [Text(), Text(_NOTE, "dim"), Text()]
    style = "bold red" if found.failed else "green" if found.threshold else ""
    return Group(*parts, Text.assemble(("verdict: ", "bold"), (found.verdict, style)))


def _cautions(found: BenchComparison) -> Iterator[Text]:
    if found.other_machine:
        yield Text(f"another machine: {_pairs(found.other_machine)}; ratios move with the machine too", "yellow")
    if found.other_versions:
        yield Text(f"otherwise than then: {_pairs(found.other_versions)}", "yellow")
    for told, names in (
        ("measured then, not now", list(only_in(found.then, found.now))),
        ("measured now, not then", list(only_in(found.now, found.then))),
    ):
        if names:
            yield Text(f"{told}: {', '.join(map(printable, names))}", "dim")


def _pairs(differing: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(printable(f"{name} {then} then, {now} now") for name, (then, now) in differing.items())


def _table(found: BenchComparison, case: str) -> Table:
    table = ruled_table()
    table.add_column("contender", no_wrap=True)
    for heading in ("then", "now", "now ÷ then", "range"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for change in found.changes:
        if change.case == case:
            table.add_row(*_cells(change), Text(change.verdict, _STYLES[change.verdict]), style=_dim(change))
    return table


def _dim(change: SpeedChange) -> str:
    """What is not a rule is there to be seen, and judged by nobody."""
    return "" if change.is_rule else "dim"


def _cells(change: SpeedChange) -> list[str]:
    ratio = change.ratio
    return [
        change.contender,
        f"{change.then.median:.2f}",
        f"{change.now.median:.2f}",
        f"{ratio['median']:.2f}",
        f"{ratio['min']:.2f}–{ratio['max']:.2f}",
    ]
