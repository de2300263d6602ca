"""A sweep as a person sees it: a live table in a terminal, a plain line for each run elsewhere, a table in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import ruled_table, width_of
from hogwild.report.run_list import best_cells
from hogwild.report.terminal import terminal
from hogwild.report.words import count, duration, figure, plural
from hogwild.sweep.jobs import Show
from hogwild.sweep.plan import LOGS, SweepPlan, said, title
from hogwild.sweep.rows import DONE, FAILED, RUNNING, WAITING, SweepRow

_STYLES = {DONE: "green", FAILED: "bold red", RUNNING: "cyan", WAITING: "dim"}
_LR = "lr"
_MOST_METRICS = 4
_WIDEST_SETTING = 24  # letters of a setting
_AROUND = 8  # lines of a terminal that the table leaves free
_SHOW_EVERY = 0.25  # seconds


def sweep_report(plan: SweepPlan, rows: Sequence[SweepRow], folder: Path) -> RenderableType:
    """What a sweep came to."""
    failed = [row for row in rows if row.status == FAILED]
    parts: list[RenderableType] = [Text(f"sweep of {plan.name} · {_counts(rows)}", "bold")]
    if plan.fixed:
        parts.append(Text(f"all with {title(plan.fixed)}", "dim"))
    if told := _rates(plan):
        parts.append(Text(told, "dim"))
    parts.append(Padding(sweep_table(rows), (1, 0, 1, 2)))
    if failed:
        parts.append(Padding(_failures(failed), (0, 0, 1, 2)))
    parts.extend(Text(told, "yellow") for told in _same_bits(rows))
    parts.append(Text(f"saved in {folder}", "dim"))
    if failed:
        parts.append(Text(f"logs are in {folder / LOGS}", "dim"))
        parts.append(Text(f"hogwild sweep --resume {quote(str(folder))} tries the failed ones again", "dim"))
    if sum(row.status == DONE for row in rows) > 1:
        metric = next((name for row in rows for name in row.metrics), "loss")
        parts.append(Text(f"next: hogwild runs {quote(str(folder))} --select {metric}", "dim"))
        parts.append(Text(f"      hogwild report {quote(str(folder))}", "dim"))
    return Group(*parts)


def _same_bits(rows: Sequence[SweepRow]) -> Iterator[str]:
    """Which learning rates gave the same bits, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        rest = title({name: value for name, value in row.settings.items() if name != _LR})
        if _LR in row.settings and row.status == DONE:
            found.setdefault((row.digest, rest), []).append(said(row.settings[_LR]))
    for (_, rest), rates in found.items():
        if len(rates) > 1:
            yield (
                f"lr {', '.join(rates)}{f' ({rest})' * bool(rest)}: the same bits, for each is lowered to what stale "
                f"gradients allow ('compensated by' in the summary of each)"
            )


def _rates(plan: SweepPlan) -> str:
    """The learning rate of each optimizer, where optimizers were given and no rates."""
    if "lr" in plan.axes or "lr" in plan.fixed or not ({"optimizer"} & {*plan.axes, *plan.fixed}):
        return ""
    rates = {run.config.optimizer: run.config.lr for run in plan.runs}
    return "lr " + ", ".join(f"{rate:g} for {name}" for name, rate in rates.items() if rate is not None)


def _failures(rows: Sequence[SweepRow]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=_STYLES[FAILED], no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row("failed", Text.assemble(row.folder, "\n", (row.error, "dim")))
    return grid


@contextmanager
def following_sweep(head: str, *, quiet: bool) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Gives what shows the rows of a sweep while it is made, and what tells something in words; on standard error.

    Args:
        head: what is done.
        quiet: show nothing.
    """
    console = terminal(stderr=True)
    if quiet:
        yield lambda rows: None, lambda text: None  # noqa: ARG005
    elif console.is_terminal:
        with Live(Text(head, "bold"), console=console, auto_refresh=False, transient=True) as live:
            shown = _Shown(head, live)
            yield shown.show, shown.tell
    else:
        lines = _Lines(console)
        lines.tell(head)
        yield lines.show, lines.tell


class _Shown:
    def __init__(self, head: str, live: Live) -> None:
        self._head, self._live, self._told = head, live, 0.0
        self._pace: tuple[float, float] | None = None

    def show(self, rows: Sequence[SweepRow]) -> None:
        if time.monotonic() - self._told >= _SHOW_EVERY:
            self._told = time.monotonic()
            height = max(3, self._live.console.height - _AROUND)
            below = Text(f"{_counts(rows)}, {duration(self._remaining(rows))} to go", "dim")
            self._live.update(Group(Text(self._head, "bold"), sweep_table(rows, height), below), refresh=True)

    def tell(self, text: str) -> None:
        self._live.update(Text(f"{self._head}\n{text}"), refresh=True)

    def _remaining(self, rows: Sequence[SweepRow]) -> float:
        """Seconds to go, at the pace since the first look; NaN where nothing is known."""
        made = sum(_part(row) for row in rows)
        if self._pace is None:
            self._pace = (time.monotonic(), made)
        began, before = self._pace
        seconds = time.monotonic() - began
        return seconds * (len(rows) - made) / (made - before) if made > before else float("nan")


class _Lines:
    """A plain line for each run that ends, without control codes: for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: set[str] | None = None  # the folders of the runs that had ended

    def show(self, rows: Sequence[SweepRow]) -> None:
        ended = {row.folder: row for row in rows if row.status in (DONE, FAILED)}
        if self._before is None and ended:
            self.tell(f"{len(ended)} of {len(rows)} are done already")
            self._before = set(ended)
        for folder, row in ended.items():
            if folder not in (self._before or ()):
                self.tell(f"{len(ended)} of {len(rows)} · {title(row.settings) or folder}: {_words(row)}")
        self._before = set(ended)

    def tell(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def _words(row: SweepRow) -> str:
    if row.status == FAILED:
        return f"failed: {row.error}"
    figures = "".join(f"  {name} {_figure(value)}" for name, value in row.metrics.items())
    return f"done in {duration(row.seconds or 0.0)}{figures}"


def _part(row: SweepRow) -> float:
    """How much of a run is made, from 0 to 1."""
    if row.status in (DONE, FAILED):
        return 1.0
    return row.updates / row.total if row.total else 0.0


def _counts(rows: Sequence[SweepRow]) -> str:
    of = {status: sum(row.status == status for row in rows) for status in (FAILED, RUNNING, WAITING)}
    done = sum(row.status == DONE for row in rows)
    more = "".join(f", {number} {status}" for status, number in of.items() if number)
    return f"{plural(len(rows), 'run')}, {done} done{more}"


def sweep_table(rows: Sequence[SweepRow], height: int | None = None) -> RenderableType:
    """The rows that there is room for, those under way among them, with the columns that there is room for."""
    shown, before, after = _window(rows, height)
    around = [Text(f"… {number} more", "dim") if number else None for number in (before, after)]
    return Group(*(part for part in (around[0], _Fitting(rows, shown), around[1]) if part is not None))


class _Fitting:
    """A table that leaves out what is told last: further metrics, the digest, the loss, the best version. Settings are
    always shown."""

    def __init__(self, rows: Sequence[SweepRow], shown: Sequence[SweepRow]) -> None:
        self._shown = shown
        self._under_way = any(row.status in (RUNNING, WAITING) for row in rows)
        self._settings = list(dict.fromkeys(name for row in rows for name in row.settings))
        known = list(dict.fromkeys(name for row in rows for name in row.metrics))
        own = [name for name in known if name != "loss"]
        loss = ["loss"] if known else []
        few = [own[:1] + loss, own[:1] or loss]
        choices = [(own[:number] + loss, True, True) for number in range(min(len(own), _MOST_METRICS), 0, -1)]
        self._choices = [*choices, *((metrics, True, False) for metrics in few), (few[-1], False, False)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(*self._choices[0])
        for choice in self._choices:
            table = self._table(*choice)
            if width_of(table, console, options) <= options.max_width:
                break
        yield table
        left = len(whole.columns) - len(table.columns)
        if left and not self._under_way:
            yield Text(f"no room for {plural(left, 'column')}: a wider terminal or --json has all", "dim")

    def _table(self, metrics: Sequence[str], best: bool, digest: bool) -> Table:
        heading, kept = best_cells([row.best for row in self._shown])
        best = best and any(row.best for row in self._shown)
        table = ruled_table(tight=False)
        for name in self._settings or ["run"]:
            table.add_column(name, no_wrap=True, max_width=_WIDEST_SETTING)
        table.add_column("status", no_wrap=True)
        for name in (*metrics, *([heading] if best else []), "time"):
            table.add_column(name, justify="right", no_wrap=True)
        if digest:
            table.add_column("digest", no_wrap=True, style="dim")
        for place, row in enumerate(self._shown):
            own = [said(row.settings[name]) if name in row.settings else "–" for name in self._settings] or [row.folder]
            figures = (_figure(row.metrics.get(name), "–" if row.status == DONE else "") for name in metrics)
            seconds = duration(row.seconds) if row.seconds is not None else ""
            more = [kept[place] if row.status == DONE else ""] if best else []
            table.add_row(*own, _status(row), *figures, *more, seconds, *([row.digest[:8]] if digest else []))
        return table


def _window(rows: Sequence[SweepRow], height: int | None) -> tuple[Sequence[SweepRow], int, int]:
    """(rows, how many are left out before them, and after them)."""
    if height is None or len(rows) <= height:
        return rows, 0, 0
    running = [number for number, row in enumerate(rows) if row.status == RUNNING]
    first = min(max(0, (running[0] if running else len(rows)) - height // 2), len(rows) - height)
    return rows[first : first + height], first, len(rows) - first - height


def _status(row: SweepRow) -> Text:
    if row.status == RUNNING and row.total:
        return Text(f"{100 * _part(row):.0f} % of {count(row.total)}", _STYLES[RUNNING])
    return Text("starting" if row.status == RUNNING else row.status, _STYLES[row.status])


def _figure(value: float | None, unknown: str = "–") -> str:
    return unknown if value is None else figure(value)
