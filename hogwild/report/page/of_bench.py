"""A saved bench as a section: every contender's speed beside the loop written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.report.page.figures import ACCENT, SERIES, SOFT, Bar, Curve, bars, curves
from hogwild.report.page.parts import DataTable, Drawing, Section, paired
from hogwild.report.words import count, plural

Found = Mapping[str, Any]


def bench_section(found: Found, path: Path) -> Section:
    """What `hogwild bench --json` printed, or `--save` wrote; with or without --pad-ms."""
    machine = found["machine"]
    padded = "cases" not in found
    return Section(
        kind="bench",
        title=f"{'Scaling' if padded else 'Speed'} on {machine['processor']}",
        about=f"{plural(machine['cores'], 'core')} · {machine['system']} · Python {machine['python']} · torch "
        f"{machine['torch']} · {path}",
        verdict=_padded_verdict(found) if padded else _verdict(found),
        good=False if found.get("failed") else None,
        lines=[]
        if padded
        else [(case, f"{row['name']}: {_ratio(row['over_serial'], ' ×')}") for case, row in _best(found)],
        drawings=paired(
            list(_padded_drawings(found)) if padded else [_drawing(found, case) for case in found["cases"]]
        ),
        tables=[_padded_table(found)] if padded else [_table(case) for case in found["cases"]] + [_legend(found)],
        notes=[f"Warning: {line}" for line in found["warnings"]],
    )


def _rules(found: Found) -> set[str]:
    return {contender["name"] for contender in found["contenders"] if contender["rule"]}


def _best(found: Found) -> list[tuple[str, Found]]:
    """(case, the result of the rule that is fastest over the loop by hand)."""
    rules, best = _rules(found), []
    for case in found["cases"]:
        ours = [row for row in case["results"] if row["name"] in rules and row["over_serial"]]
        if ours:
            best.append((case["name"], max(ours, key=lambda row: float(row["over_serial"]["median"]))))
    return best


def _verdict(found: Found) -> str:
    ratios = [row["over_serial"]["median"] for _, row in _best(found)]
    if not ratios:
        return "No rule was measured."
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    times = f"{low} times" if low == high else f"{low} to {high} times"
    return f"The fastest rule does {times} the samples per second of the serial loop written by hand."


def _drawing(found: Found, case: Found) -> Drawing:
    rules = _rules(found)
    drawn = [_bar(row, ACCENT if row["name"] in rules else SOFT) for row in case["results"] if row["over_serial"]]
    told = f"{case['about'][:1].upper()}{case['about'][1:]}."
    if case is found["cases"][0]:
        told = (
            "Samples per second, divided by those of the serial loop in the same repeat: median and range. Blue: the "
            "rules of this package; grey: what one would use instead. Beyond the dotted line is faster than serial."
        )
    return Drawing(case["name"], told, bars(drawn, "× the serial loop", at=1.0), wide=len(drawn) > 12)


def _bar(row: Found, colour: str) -> Bar:
    ratio = row["over_serial"]
    told = f"{row['name']}: {_ratio(ratio, ' ×')} serial, {count(row['samples_per_second']['median'])} samples/s"
    return Bar(row["name"], ratio["median"], colour, ratio["min"], ratio["max"], told)


def _ratio(ratio: Found | None, unit: str = "") -> str:
    return f"{ratio['median']:.2f}{unit} ({ratio['min']:.2f}–{ratio['max']:.2f})" if ratio else "–"


def _table(case: Found) -> DataTable:
    rows = [
        (
            row["name"],
            count(row["samples_per_second"]["median"]) if row["samples_per_second"] else _why_not(row),
            _ratio(row["over_serial"]),
            f"{row['over_best_alternative']['median']:.2f}" if row["over_best_alternative"] else "–",
            "–" if row["startup_seconds"] is None else f"{row['startup_seconds']:.2f}",
            "–" if not row["memory_per_worker"] else f"{row['memory_per_worker'] / 2**20:.0f}",
        )
        for row in case["results"]
    ]
    best = [place for place, row in enumerate(case["results"]) if row["name"] == case["best_alternative"]]
    headings = ("contender", "samples/s", "× serial (range)", "× best", "start, s", "MiB a worker")
    note = f"{case['about']}; {case['batches']:,} batches. Bold: the best alternative, which × best divides by."
    return DataTable(f"Numbers: {case['name']}", headings, rows, strong=best, folded=True, note=note)


def _why_not(row: Found) -> str:
    return "refused" if row["refused"] else "unfinished" if row["unfinished"] else "failed"


def _legend(found: Found) -> DataTable:
    rows = {contender["family"]: contender["about"] for contender in found["contenders"]}
    return DataTable("What each contender is", ("contender", "what"), list(rows.items()), folded=True)


# --- a bench of scaling


def _padded_verdict(found: Found) -> str:
    pad = 1e3 * found["settings"]["pad_seconds"]
    most = max(found["results"], key=lambda row: int(row["workers"]), default=None)
    if most is None:
        return "No rule was measured."
    return (
        f"With gradients that wait {pad:g} ms, {plural(most['workers'], 'worker')} under {most['rule']} did "
        f"{100 * most['share_of_ideal']:.0f} % of the updates that the wait allows."
    )


def _padded_drawings(found: Found) -> Iterator[Drawing]:
    for case in dict.fromkeys(row["case"] for row in found["results"]):
        drawn: list[Curve] = []
        rows = [row for row in found["results"] if row["case"] == case]
        kinds = list(dict.fromkeys((row["rule"], row["kind"]) for row in rows))
        for place, (rule, kind) in enumerate(kinds):
            mine = [row for row in rows if (row["rule"], row["kind"]) == (rule, kind)]
            drawn.append(_scaling(f"{rule}, {kind}", mine, SERIES[place % len(SERIES)]))
        workers = sorted({row["workers"] for row in rows})
        ideal = [number / found["settings"]["pad_seconds"] for number in workers]
        drawn.append(Curve("ideal", workers, ideal, SOFT, "dashed"))
        told = "Updates per second by the number of workers, each gradient waiting; dashed: what the wait alone allows."
        plot = curves(drawn, "workers", "updates per second", log_x=True, log_y=True, ticks_x=workers)
        yield Drawing(case, told, plot, wide=True)


def _scaling(name: str, rows: Sequence[Found], colour: str) -> Curve:
    speeds = [row["updates_per_second"]["median"] for row in rows]
    return Curve(name, [row["workers"] for row in rows], speeds, colour, "points")


def _padded_table(found: Found) -> DataTable:
    rows = [
        (
            f"{row['rule']}, {row['kind']}",
            str(row["workers"]),
            "–" if row["staleness"] is None else str(row["staleness"]),
            f"{row['updates_per_second']['median']:,.0f}",
            f"{100 * row['share_of_ideal']:.0f} %",
        )
        for row in found["results"]
    ]
    return DataTable("Updates per second", ("rule", "workers", "staleness", "updates/s", "of ideal"), rows, folded=True)
