"""Two recorded runs side by side, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hogwild.determinism.sessions import Pair
from hogwild.determinism.two_runs import RunComparison
from hogwild.errors import printable, some_of
from hogwild.report.ranking import setting_text
from hogwild.report.run_list import short_path
from hogwild.report.run_words import at_updates
from hogwild.report.words import count, duration, figure, short_digest
from hogwild.run.saved.setting_words import called, short_value, worth_a_column

_ROWS = 8  # of one section, at most
_WIDEST = 60  # letters of a value
_LONG = 20  # letters of a folder that is left out
_VALUES: Mapping[str, Callable[[float], str]] = {"updates": count, "samples_per_second": count, "seconds": duration}

_OF_BATCHES = (
    "accumulate",
    "batch_size",
    "drop_last",
    "micro_batches",
    "shuffle",
)  # settings that say which a loss is of


def comparison_report(found: RunComparison) -> RenderableType:
    """What differs, in four parts, and the verdict."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=16)
    grid.add_column(overflow="fold", ratio=1)
    grid.add_column(overflow="fold", ratio=1)
    grid.add_row("", *(Text(name, "bold") for name in _names(found)))
    if found.titles[0] != found.titles[1]:
        grid.add_row("", *found.titles)
    for name, rows in sections(found):
        grid.add_row()
        grid.add_row(Text(name, "bold not dim"))
        for row in rows:
            grid.add_row(*(Text(cell, "cyan" if place and row[1] != row[2] else "") for place, cell in enumerate(row)))
    style = "green" if found.identical else "bold yellow"
    parts = [Padding(grid, (0, 0, 1, 0)), _bits(found), Text()]
    head = [] if found.titles[0] != found.titles[1] else [Text(found.titles[0], "bold"), Text()]
    return Group(*head, *parts, Text.assemble(("verdict: ", "bold"), (found.verdict, style)))


def sections(found: RunComparison) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
    """Each part of a comparison: what it is about, and its rows (name, the one, the other)."""
    settings = [
        (called(name), short_value(name, one), short_value(name, other))
        for name, one, other in found.settings
        if name in worth_a_column([name], (found.a, found.b))
    ]
    training = [*_rows([*settings, *found.training]), *_compensation(found)]
    yield ("settings that differ", training) if training else ("settings: equal", [])
    if found.environment is None:
        yield "environment: not recorded in both", _resumed(found)
    elif found.environment:
        yield "environment that differs", [*_environment(found.environment), *_resumed(found)]
    else:
        yield f"environment: equal{found.in_all}", _resumed(found)
    results = [
        (printable(name.replace("_", " ")), _measured(name, one), _measured(name, other))
        for name, one, other in found.metrics()
    ]
    yield "results", [*results, *_digests(found)]


def bit_lines(found: RunComparison) -> Iterable[tuple[str, str]]:
    """How far apart the final states are, and since when: (what, finding)."""
    apart, first = found.divergence, found.first
    same_bits = f"the same bits: {len(apart.tensors):,} tensors, {apart.size:,} values"
    yield "final state", same_bits if first is None else apart.summary()
    for name, same in found.beside:
        yield name, "the same bits" if same else "other bits"
    if first is None:
        return
    told = first.words
    if first.parameters and first.noted_at is not None and not first.from_the_start:
        told += f"; at version {first.noted_at:,}, the first noted that differs: {some_of(first.parameters)}"
    yield "first difference", told
    if first.update is not None:
        on = f", computed on version {first.read:,}" if first.read else ""
        start = f": {_why_from_the_start(found)}" if first.from_the_start else ""
        yield "losses", f"the first that differs is that of update {first.update:,}{on}{start}"
    if first.order is not None:
        yield "order", f"updates took another order, or read other versions, from version {first.order:,} on"


def _why_from_the_start(found: RunComparison) -> str:
    """What may make even the first loss another."""
    batches = [name for name, *_ in found.settings if name in _OF_BATCHES]
    return (
        f"it is of other batches ({', '.join(batches)})"
        if batches
        else "the initial model, the data or the loss are others"
    )


def _bits(found: RunComparison) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=16)
    grid.add_column(overflow="fold")
    grid.add_row(Text("bits", "bold not dim"))
    for name, told in bit_lines(found):
        grid.add_row(name, Text(told))
    return grid


def _rows(pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    rows = [(name, _short(one), _short(other)) for name, one, other in pairs[:_ROWS]]
    if len(pairs) > _ROWS:
        rows.append((f"{len(pairs) - _ROWS} more", "--json has all", ""))
    return rows


def _environment(pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    """Of a list of instruction sets, what only the one has."""
    shown = []
    for name, one, other in pairs:
        if name == "instruction sets":
            mine, yours = set(str(one).split()), set(str(other).split())
            one, other = (f"also {' '.join(sorted(more))}" if more else "–" for more in (mine - yours, yours - mine))
        shown.append((name, one, other))
    return _rows(shown)


def _resumed(found: RunComparison) -> list[tuple[str, str, str]]:
    """When each was gone on with, where one of them was."""
    if found.sessions == 2:
        return []
    one, other = (at_updates(run.resumed) or "never" for run in (found.a, found.b))
    return [("resumed", one, other)]


def _compensation(found: RunComparison) -> list[tuple[str, str, str]]:
    """What compensation changed, where that is not the same in both."""
    one, other = (", ".join(run.compensation) or "–" for run in (found.a, found.b))
    return [("compensated by", one, other)] if one != other else []


def _short(value: Any) -> str:
    text = setting_text(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _measured(name: str, value: float | None) -> str:
    shown = count if name.startswith("update of ") else _VALUES.get(name, figure)
    return "–" if value is None else shown(value)


def _digests(found: RunComparison) -> list[tuple[str, str, str]]:
    """Those of the final states, of the moving averages and of the best versions, where there are any."""
    runs = found.a, found.b
    rows = {
        "digest": [run.digest for run in runs],
        "digest of average": [run.ema_digest for run in runs],
        "digest of best": [run.best.get("digest") for run in runs],
    }
    told = {name: [short_digest(one) if one else "–" for one in digests] for name, digests in rows.items()}
    return [(name, one, other) for name, (one, other) in told.items() if one != "–" or other != "–"]


def _names(found: RunComparison) -> tuple[str, str]:
    """What the two are called: their paths, or the ends of these where they are long and in one folder."""
    one, other = found.a.path, found.b.path
    if one.parent == other.parent and one != other and len(str(one.parent)) > _LONG:
        one, other = Path("…", one.name), Path("…", other.name)
    return short_path(one, ()), short_path(other, ())
