"""Several runs as a section: which settings differ, which are best, and how their learning curves compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hogwild.determinism.two_runs import RunComparison
from hogwild.report.page.figures import NO_RESULT, SERIES, SOFT, Bar, Curve, ages, bars, curves
from hogwild.report.page.of_run import age_counts, evaluations_of, seconds_of
from hogwild.report.page.parts import DataTable, Drawing, Section, paired
from hogwild.report.ranking import (
    Choice,
    choices,
    conclusion_of,
    diverged_of,
    in_words,
    low_is_good,
    metric_names,
    setting_text,
    shared_settings,
    tied_for_best,
)
from hogwild.report.run_list import INTERVAL_NOTE, best_cells, half_widths, remark_of, short_path
from hogwild.report.side_by_side import bit_lines, sections
from hogwild.report.smoothed import smoothed_loss
from hogwild.report.words import count, duration, figure, is_loss, plural
from hogwild.run.result import Run
from hogwild.run.saved.found import DONE, ENDED_EARLY, FAILED, FoundFolders, FoundRun, differing_settings, setting_of
from hogwild.run.saved.setting_words import called, short_value, worth_a_column

_GROUPS = 8  # settings that have a colour of their own
_AXES = ("updates", "seconds of training")
_MEAN_POINTS = 200  # of a mean curve
_BARS = 24  # settings that are drawn side by side


@dataclass(frozen=True)
class _Group:
    """Runs with the same settings but for the seed, and their colour; grey where there are more than colours."""

    name: str
    colour: str
    runs: tuple[Run, ...]


def runs_section(
    found: FoundFolders, runs: Sequence[Run], folders: Sequence[Path], metric: str, between: RunComparison | None
) -> Section:
    """Runs side by side. `runs` are those that were read whole, and `between` is the comparison where they are two."""
    listed = [run for run in found.runs if run.path in {one.out for one in runs}]
    lowest = low_is_good(metric)
    failed = [run for run in found.runs if run.status == FAILED]
    chosen = choices([*listed, *failed], metric, lowest=lowest) if any(run.whole for run in listed) else []
    groups = _groups(chosen, runs, listed)
    verdict = conclusion_of(chosen, metric, lowest=lowest) if chosen else "no run has ended."
    tables = [_choices(chosen, metric)] if _worth_comparing(chosen) else []
    if between is not None:
        verdict, tables = between.verdict, [*tables, _differences(between)]
    return Section(
        kind="runs",
        title=_title(listed),
        about=f"{plural(len(found.runs), 'run')} in {', '.join(map(str, folders[:3]))}{' …' * (len(folders) > 3)}",
        verdict=_capital(verdict),
        facts=_facts(listed, chosen, metric),
        lines=list(bit_lines(between)) if between is not None else [],
        drawings=paired([*_curves(groups, metric), *_comparison(chosen, groups, metric), *_staleness(groups)]),
        tables=[*tables, _runs(found, folders)],
        notes=[_note(run, folders) for run in found.runs if run.status != DONE or run.diverged],
    )


def _note(run: FoundRun, folders: Sequence[Path]) -> str:
    told = run.why if run.status == ENDED_EARLY else remark_of(run)
    if run.diverged:
        told = f"{told}{'; ' * bool(told)}{run.diverged}"
    return f"{short_path(run.path, folders)}: {run.status}{': ' * bool(told)}{told}"


def _title(listed: Sequence[FoundRun]) -> str:
    names = list(dict.fromkeys(str(setting_of(run, "name")) for run in listed))
    names_of_settings = worth_a_column(differing_settings(listed), listed)
    differing = [called(name) for name in names_of_settings if name != "name"]
    of = ", ".join(names[:3])
    return f"{of}: {', '.join(differing[:4])} compared" if differing else f"{of}: {len(listed)} times the same settings"


def _facts(listed: Sequence[FoundRun], chosen: Sequence[Choice], metric: str) -> list[tuple[str, str]]:
    shared = shared_settings(listed)
    shared.pop("name", None)
    found = [("runs", count(len(listed)))]
    if chosen:
        best, word = chosen[0].interval, metric.replace("_", " ")
        name = f"best {word}" if best.half is None else f"best mean {word}, {half_widths([best])[0]}"
        found.append((name, figure(best.mean)))
        found.append(("settings compared", count(len(chosen))))
    return [*found, *((name.replace("_", " "), setting_text(value)) for name, value in list(shared.items())[:3])]


def _groups(chosen: Sequence[Choice], runs: Sequence[Run], listed: Sequence[FoundRun]) -> list[_Group]:
    """Best first; runs that count in no mean, as those that were interrupted or diverged, come last and are grey."""
    by_path = {run.out: run for run in runs}
    groups = []
    for place, choice in enumerate(choice for choice in chosen if choice.runs):
        name = in_words(choice.settings) or f"{plural(len(choice.runs), 'run')}"
        colour = SERIES[place] if place < _GROUPS else SOFT
        groups.append(_Group(name, colour, tuple(by_path[run.path] for run in choice.runs)))
    told = {run.path for choice in chosen for run in choice.runs}
    rest = tuple(by_path[run.path] for run in listed if run.path not in told)
    return [*groups, _Group(NO_RESULT, SOFT, rest)] if rest else groups


# --- figures


def _curves(groups: Sequence[_Group], metric: str) -> Iterator[Drawing]:
    """The chosen metric, and the training loss: over updates and over seconds."""
    told = "A line for each run."
    if any(len(group.runs) > 1 for group in groups):
        told = "A colour for each of the settings: thin, a run; thick, the mean over seeds."
    if len(groups) > _GROUPS:
        told += f" The best {_GROUPS} have colours; the others are grey."
    for name in dict.fromkeys((metric, "")):
        title = name.replace("_", " ") if name else "training loss"
        for axis in _AXES:
            found = [curve for group in groups for curve in _group_curves(group, name, axis)]
            if found:
                what = told if axis == _AXES[0] else "The same over time: a steeper curve is a faster training."
                means = [curve for curve in found if curve.style == "line"]
                thin = [curve for curve in found if curve.style != "line"]
                plot = curves([*means, *thin], axis, "", log_y=None if not name or is_loss(name) else False)
                yield Drawing(f"{_capital(title)} over {axis.partition(' ')[0]}", what, plot)


def _group_curves(group: _Group, name: str, axis: str) -> Iterator[Curve]:
    """Each run of a group, and the mean of several where all of them are. Without a name: the training loss."""
    found = []
    for run in group.runs:
        at, values = smoothed_loss(run)[:2] if not name else evaluations_of(run, name)
        if len(at):
            found.append((at if axis == _AXES[0] else seconds_of(run, at), values))
    if len(found) > 1 and group.colour != SOFT:
        start, end = max(x[0] for x, _ in found), min(x[-1] for x, _ in found)
        if start < end:  # else there is none at which all runs were measured
            grid = np.linspace(start, end, _MEAN_POINTS)
            yield Curve(group.name, grid, np.mean([np.interp(grid, x, y) for x, y in found], axis=0), group.colour)
    for x, values in found:
        single = "points" if name else "line"
        yield Curve(group.name, x, values, group.colour, "thin" if len(found) > 1 and len(x) > 1 else single)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _worth_comparing(chosen: Sequence[Choice]) -> bool:
    """Two runs are compared line by line; settings with several seeds, or several settings, by their means."""
    return len(chosen) > 2 or (len(chosen) == 2 and any(len(choice.runs) > 1 for choice in chosen))


def _comparison(chosen: Sequence[Choice], groups: Sequence[_Group], metric: str) -> Iterator[Drawing]:
    if not _worth_comparing(chosen):
        return
    word = metric.replace("_", " ")
    found = []
    for choice, group in list(zip([one for one in chosen if one.runs], groups, strict=False))[:_BARS]:
        interval = choice.interval
        low, high = (
            (choice.least, choice.most)
            if interval.half is None
            else (interval.mean - interval.half, interval.mean + interval.half)
        )
        told = f"{group.name}: {figure(interval.mean)} {half_widths([interval])[0]}, {plural(interval.number, 'run')}"
        found.append(Bar(group.name, interval.mean, group.colour, low, high, told))
    more = f" The best {_BARS} of {len(chosen)}." if len(chosen) > _BARS else ""
    told = (
        f"The mean over seeds, best first; the line is its 95 % interval. Where lines overlap, chance may decide.{more}"
    )
    yield Drawing(f"{_capital(word)} by settings", told, bars(found, word, start_at_zero=False), wide=len(found) > 6)


def _staleness(groups: Sequence[_Group]) -> Iterator[Drawing]:
    shown = [group for group in groups if group.colour != SOFT][:_GROUPS]
    counts = {}
    for group in shown:
        found = [age_counts(run) for run in group.runs]
        total = np.zeros(max(map(len, found)), np.int64)
        for one in found:
            total[: len(one)] += one
        counts[group.name] = total
    if counts:
        told = "How old the model was that a gradient was computed on, when the gradient was applied."
        told += " All seeds together." if any(len(group.runs) > 1 for group in shown) else ""
        yield Drawing("Staleness", told, ages(counts))


# --- tables


def _choices(chosen: Sequence[Choice], metric: str) -> DataTable:
    names, lost = list(chosen[0].settings), any(choice.diverged for choice in chosen)
    widths = half_widths([choice.interval for choice in chosen])
    rows = [
        (
            *(setting_text(short_value(name, choice.settings[name])) for name in names),
            figure(choice.interval.mean),
            widths[place],
            figure(choice.least),
            figure(choice.most),
            str(len(choice.runs)),
            *([diverged_of(choice) if choice.diverged else "–"] if lost else []),
        )
        for place, choice in enumerate(chosen)
    ]
    headings = (
        *(called(name) for name in names),
        f"mean {metric.replace('_', ' ')}",
        "",
        "min",
        "max",
        "runs",
        *(["diverged"] if lost else []),
    )
    return DataTable(
        "Settings, best first", headings, rows, strong=range(len(tied_for_best(chosen))), note=INTERVAL_NOTE
    )


def _runs(found: FoundFolders, folders: Sequence[Path]) -> DataTable:
    listed = list(found.runs)
    with_settings = [run for run in listed if run.settings]
    settings, metrics = worth_a_column(differing_settings(with_settings), with_settings), metric_names(listed)
    kept = [best_cells([run.best for run in listed])] if any(run.best for run in listed) else []
    names = [*map(called, (*settings, *metrics)), *(heading for heading, _ in kept)]
    headings = ("run", *names, "training loss", "time", "digest")
    rows = [
        (
            short_path(run.path, folders),
            *(setting_text(short_value(name, setting_of(run, name))) if run.settings else "" for name in settings),
            *("–" if (value := run.metrics.get(name)) is None else figure(value) for name in metrics),
            *(cells[place] for _, cells in kept),
            "–" if run.loss is None else figure(run.loss),
            "–" if run.seconds is None else duration(run.seconds),
            run.digest[:8] if run.digest else run.status,
        )
        for place, run in enumerate(listed)
    ]
    return DataTable("All runs", headings, rows, folded=len(rows) > 12)


def _differences(between: RunComparison) -> DataTable:
    rows = [
        (what, "", "") if not inner else row for what, inner in sections(between) for row in (inner or [("", "", "")])
    ]
    headings = ("", str(between.a.path), str(between.b.path))
    return DataTable("The two runs side by side", headings, rows)
