"""Runs side by side: as a table that fits the terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from hogwild.bench.cases import ruled_table
from hogwild.determinism.interval import CONFIDENCE, MeanInterval
from hogwild.errors import printable, some_of
from hogwild.report.ranking import (
    LOSS,
    Choice,
    conclusion_of,
    diverged_of,
    in_words,
    metric_names,
    one_metric_of_each,
    setting_text,
    shared_settings,
    tied_for_best,
)
from hogwild.report.words import count, duration, figure, plural, training_loss
from hogwild.run.saved.found import (
    BROKEN,
    DONE,
    ENDED_EARLY,
    FAILED,
    KILLED,
    NO_RUN,
    RUNNING,
    WATCHING,
    FoundFolders,
    FoundRun,
    OtherFolder,
    differing_settings,
    setting_of,
)
from hogwild.run.saved.metrics import finite_or_none
from hogwild.run.saved.setting_words import called, short_value, worth_a_column
from hogwild.sweep.missing import MissingRuns

_SHOWN = 8  # folders without a run that are named
_NAMED = 3  # folders that the headline names
_LEFT_OUT = 6  # columns without room that are named
_DIGITS = 8  # of a digest
_LONGEST = 1_000  # letters of a path
_FINER = 2  # more decimals, at most, than give the largest of some intervals two digits
_GAP = 2  # cells of padding around a column
_WORTH_A_NAME = 70  # columns that are kept at least as long: names of runs are cut before they are left out
_STYLES = {BROKEN: "bold red", FAILED: "bold red", RUNNING: "cyan"}


@dataclass(frozen=True)
class _Column:
    """A column of a list: `keep` says which ones go last where the terminal is narrow."""

    heading: str
    cells: Sequence[str]
    keep: int
    right: bool = True

    @property
    def width(self) -> int:
        return max([cell_len(self.heading), *map(cell_len, self.cells)])


@dataclass(frozen=True)
class _Fitting:
    """A table of those columns that the console has room for; the others are named below it. The first one is shortened
    before any is left out, where there is a shorter one; and down to half of the console, in the middle, before one is
    left out that says more than the end of a name."""

    columns: Sequence[_Column]
    styles: Sequence[str]
    shorter: _Column | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        if self.shorter is not None and sum(one.width + _GAP for one in shown) > options.max_width:
            shown[0] = self.shorter
        first = shown[0]
        while (room := options.max_width - _GAP - sum(one.width + _GAP for one in shown[1:])) < shown[0].width:
            last = min(shown, key=lambda one: one.keep)
            if shown[0] is first and last.keep >= _WORTH_A_NAME and room >= options.max_width // 2:
                shown[0] = replace(first, cells=[_cut(cell, room) for cell in first.cells])
            elif len(shown) > 1:
                shown.remove(last)
            else:
                break
        table = ruled_table()
        for one in shown:
            table.add_column(
                printable(one.heading), justify="right" if one.right else "left", no_wrap=one is not shown[0]
            )
        for cells, style in zip(zip(*(one.cells for one in shown), strict=True), self.styles, strict=True):
            table.add_row(*map(Text, cells), style=style)
        yield table
        left = [one for one in self.columns[1:] if one not in shown]
        if left:
            named = some_of([one.heading for one in sorted(left, key=lambda one: -one.keep)], _LEFT_OUT)
            yield Text(f"no room for {named}: a wider terminal, --csv or --json has all", "dim")


def _cut(text: str, width: int) -> str:
    """A text in so many cells, its beginning and its end where it is longer."""
    if cell_len(text) <= width:
        return text
    end = set_cell_size(text[::-1], (width - 1) // 2).strip()[::-1]
    return set_cell_size(text, width - 1 - cell_len(end)).strip() + "…" + end


def run_list_report(found: FoundFolders, folders: Sequence[Path]) -> RenderableType:
    """The runs, a row each, with the settings that differ; then what is broken, and what is no run."""
    runs = [run for run in found.runs if run.status != BROKEN]
    parts: list[RenderableType] = [Text.assemble((_headline(found, folders), "bold"), *_shared(runs))]
    if runs:
        styles = ["" if run.whole else _STYLES.get(run.status, "yellow").removeprefix("bold ") for run in runs]
        parts.extend([Text(), _Fitting(_columns(runs, folders), styles, _shorter(runs, folders)), Text()])
    return Group(*parts, *_remarks(found, folders))


def _headline(found: FoundFolders, folders: Sequence[Path]) -> str:
    where = ", ".join(map(str, folders)) if len(folders) <= _NAMED else f"{len(folders)} folders"
    return f"{plural(len(found.runs), 'run')} in {where}"


def _shared(runs: Sequence[FoundRun]) -> Iterable[tuple[str, str]]:
    shared = shared_settings(runs) if len(runs) > 1 else {}
    name = shared.pop("name", None)
    told = ", ".join(part for part in (str(name) if name else "", in_words(shared)) if part)
    if told:
        yield f" · in all: {told}", "dim"


def _columns(runs: Sequence[FoundRun], folders: Sequence[Path]) -> list[_Column]:
    columns = [_Column("run", [short_path(run.path, folders) for run in runs], 100, right=False)]
    if any(run.status != DONE for run in runs):
        columns.append(_Column("status", [run.status for run in runs], 90, right=False))
    for place, name in enumerate(worth_a_column(differing_settings(runs), runs)):
        keep = 30 if name in WATCHING else 80 - min(place, 9)
        columns.append(_setting_column(name, [setting_of(run, name) for run in runs], keep))
    metrics = metric_names(runs)
    foremost = one_metric_of_each(runs)
    for place, name in enumerate(metrics):
        cells = [_figure(run.metrics.get(name)) for run in runs]
        keep = 79 if name in foremost else 79 - min(10 * max(place, 1), 60)
        columns.append(_Column(name.replace("_", " "), cells, keep))
    if any(run.best for run in runs):
        columns.append(_Column(*best_cells([run.best for run in runs]), 70))
    speeds = ["–" if (speed := run.samples_per_second) is None else count(speed) for run in runs]
    return [
        *columns,
        _Column(training_loss(metrics), [_figure(run.loss) for run in runs], 40),
        _Column("time", ["–" if run.seconds is None else duration(run.seconds) for run in runs], 6),
        _Column("samples/s", speeds, 5),
        _Column("digest", [(run.digest or "–")[:_DIGITS] for run in runs], 4, right=False),
    ]


def _setting_column(name: str, values: Sequence[Any], keep: int) -> _Column:
    words = any(isinstance(value, str) for value in values)
    cells = [setting_text(short_value(name, value)) for value in values]
    return _Column(called(name), cells, keep, right=not words)


def best_cells(bests: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """(heading, cells) of a column of best versions: 0.9810 at 1,200; with the metric where that is not one."""
    metrics = {best["metric"] for best in bests if best}
    one = len(metrics) == 1
    cells = [
        f"{'' if one else best['metric'] + ' '}{figure(best['value'])} at {count(best['update'])}" if best else "–"
        for best in bests
    ]
    return f"best {metrics.pop()}".replace("_", " ") if one else "best", cells


def _figure(value: float | None) -> str:
    return "–" if value is None else figure(value)


def _shorter(runs: Sequence[FoundRun], folders: Sequence[Path]) -> _Column | None:
    """The runs by the ends of their paths, where these are all different and some are shorter."""
    paths = [short_path(run.path, folders) for run in runs]
    ends = [path if "/" not in path else f"…/{path.rpartition('/')[2]}" for path in paths]
    return _Column("run", ends, 100, right=False) if ends != paths and len({*ends}) == len(ends) else None


def short_path(path: Path, folders: Sequence[Path]) -> str:
    """A run as lists have it: its path in the one folder that was named."""
    inside = len(folders) == 1 and path != folders[0]
    return printable(str(path.relative_to(folders[0]) if inside else path), _LONGEST)


def remark_of(run: FoundRun) -> str:
    """Why a run did not end as it should, and what goes on with it."""
    told = [run.why] if run.why else []
    if run.go_on:
        told.append(f"{run.go_on} goes on")
    elif run.status == KILLED:
        told.append("there is no checkpoint to go on from")
    return "; ".join(told)


def _remarks(found: FoundFolders, folders: Sequence[Path]) -> Iterable[RenderableType]:
    for run in found.runs:
        if run.status not in (DONE, ENDED_EARLY):
            style = _STYLES.get(run.status, "yellow")
            yield Text.assemble((f"{run.status}  ", style), f"{short_path(run.path, folders)}: {remark_of(run)}")
        if run.diverged:
            yield Text.assemble(("diverged  ", "yellow"), f"{short_path(run.path, folders)}: {run.diverged}")
    checks = [other for other in found.others if other.what != NO_RUN]
    for other in checks:
        yield Text(f"{other.what}  {short_path(other.path, folders)}: {other.why}", "dim")
    others = [other for other in found.others if other.what == NO_RUN]
    for other in others[:_SHOWN]:
        yield Text(f"no run  {short_path(other.path, folders)}: {other.why}", "dim")
    if len(others) > _SHOWN:
        yield Text(f"no run in {len(others) - _SHOWN} folders more (--json names them)", "dim")


def and_missing(report: RenderableType, missing: Sequence[MissingRuns]) -> RenderableType:
    """A report of runs and, below it, which runs of their sweeps there are not."""
    told = [
        Text.assemble(
            ("missing  ", "yellow"),
            f"{len(one.runs)} of the {one.planned} runs of {printable(str(one.sweep), _LONGEST)}: "
            f"{some_of([run.folder for run in one.runs])}; hogwild sweep --resume {quote(str(one.sweep))} makes them",
        )
        for one in missing
    ]
    return Group(report, *told)


# --- the best settings


def choices_report(found: Sequence[Choice], metric: str, *, lowest: bool, left: int = 0) -> RenderableType:
    """Settings by the mean of a metric over seeds, best first; and in words whether that is settled. `left`: how many
    runs have not ended."""
    number, seeds = sum(len(choice.runs) for choice in found), {seed for choice in found for seed in choice.seeds}
    head = f"{metric} of {plural(number, 'run')}, over {plural(len(seeds), 'seed')}"
    head += f" · {count(left)} not counted, for {'it has' if left == 1 else 'they have'} not ended" * bool(left)
    lost = any(one.diverged for one in found)
    columns = [_setting_column(name, [one.settings[name] for one in found], 50) for name in found[0].settings]
    columns += [
        _Column(f"mean {metric}".replace("_", " "), [figure(one.interval.mean) for one in found], 100),
        _Column("", half_widths([one.interval for one in found]), 90, right=False),
        _Column("min", [figure(one.least) for one in found], 20),
        _Column("max", [figure(one.most) for one in found], 20),
        _Column("runs", [str(len(one.runs)) for one in found], 80),
        *([_Column("diverged", [diverged_of(one) if one.diverged else "–" for one in found], 85)] if lost else []),
    ]
    tied = len(tied_for_best(found))
    table = _Fitting(columns, ["bold"] * tied + [""] * (len(found) - tied))
    told = Text.assemble(("best: ", "bold"), (conclusion_of(found, metric, lowest=lowest), "green"))
    return Group(Text(head, "bold"), Padding(table, (1, 0)), told, Text(INTERVAL_NOTE, "dim"))


INTERVAL_NOTE = (
    f"±: Student's t interval of the mean, {100 * CONFIDENCE:.0f} %, over runs that differ in the seed alone."
)


def half_widths(intervals: Sequence[MeanInterval]) -> list[str]:
    """Half of each interval, all with as many decimals as give the smallest two digits: ± 0.0042, ± 0.0730."""
    halves = [one.half for one in intervals if one.half is not None]
    places = [1 - math.floor(math.log10(half)) for half in halves if 0 < half < math.inf] or [0]
    decimals = max(0, min(max(places), min(places) + _FINER))
    texts = {
        half: f"{half:,.{decimals}f}" if half >= 0.5 * 10**-decimals or not half else f"{half:.2g}" for half in halves
    }
    width = max(map(len, texts.values()), default=0)
    return [
        f"± {texts[one.half]:>{width}}" if one.half is not None else "one run" if one.number else "no run"
        for one in intervals
    ]


# --- for programs


def run_list_object(
    found: FoundFolders,
    folders: Sequence[Path],
    chosen: Sequence[Choice] | None,
    metric: str,
    missing: Sequence[MissingRuns],
    *,
    lowest: bool,
) -> dict[str, Any]:
    """What `hogwild runs --json` prints."""
    listed = [run for run in found.runs if run.status != BROKEN]
    return {
        "folders": [str(folder) for folder in folders],
        "differing": differing_settings(listed),
        "shared": shared_settings(listed),
        "runs": [found_object(run) for run in found.runs],
        "others": [_other_object(other) for other in found.others],
        "missing": [one.to_dict() for one in missing],
        "select": None if chosen is None else _choices_object(chosen, metric, lowest),
    }


def found_object(run: FoundRun) -> dict[str, Any]:
    """A run directory as JSON has it."""
    plain = {"path": str(run.path), "settings": dict(run.settings), "metrics": dict(run.metrics)}
    return {**vars(run), **plain, "best": dict(run.best) or None}


def _other_object(other: OtherFolder) -> dict[str, str]:
    return {"path": str(other.path), "what": other.what, "why": other.why}


def _choices_object(chosen: Sequence[Choice], metric: str, lowest: bool) -> dict[str, Any]:
    return {
        "metric": metric,
        "interval": "Student's t",
        "confidence": CONFIDENCE,
        "best_is_lowest": lowest,
        "choices": [choice.to_dict() for choice in chosen],
    }


def run_list_csv(runs: Sequence[FoundRun]) -> str:
    """A line a run, all settings and metrics included; empty where a run has no such thing."""
    settings = list(dict.fromkeys(name for run in runs for name in run.settings))
    metrics = metric_names(runs)
    measured = ("updates", "seconds", "samples_per_second", LOSS, "digest")
    best = ("metric", "update", "value") if any(run.best for run in runs) else ()
    head = ["run", "status", *settings, *(f"metrics.{name}" for name in metrics), *measured]
    rows: list[list[Any]] = [[*head, *(f"best.{name}" for name in best)]]
    for run in runs:
        values = [run.settings.get(name) for name in settings] + [run.metrics.get(name) for name in metrics]
        values += [getattr(run, name) for name in measured] + [run.best.get(name) for name in best]
        rows.append([str(run.path), run.status, *values])
    return _csv(rows)


def choices_csv(found: Sequence[Choice], metric: str) -> str:
    """A line for each of the settings that were compared."""
    names = list(found[0].settings)
    rows: list[list[Any]] = [[*names, f"mean {metric}", "half", "min", "max", "runs", "diverged"]]
    for choice in found:
        interval = choice.interval
        measured = [finite_or_none(one) for one in (interval.mean, interval.half, choice.least, choice.most)]
        measured += [len(choice.runs), len(choice.diverged)]
        rows.append([*(choice.settings[name] for name in names), *measured])
    return _csv(rows)


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["" if cell is None else cell for cell in row] for row in rows])
    return text.getvalue()
