"""A bench of scaling as plain values, which `hogwild bench --pad-ms --json` prints, and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import by_case, ruled_table
from hogwild.bench.padded import PaddedPlan, PaddedResult
from hogwild.bench.several import SeveralPlan, SeveralResult
from hogwild.bench.summary import Machine, plain

_NOTE = (
    "W: workers, which are processes where nothing else is said. updates/s: median and range. ideal: share of workers "
    "÷ pad. switches: context switches of the workers an update, voluntary + involuntary; the wait is one of them "
    "(under a rule that averages, one a batch). cpu: µs of processor time of the workers an update. model: updates/s "
    "predicted from a profile without the wait (hogwild/bench/model.py). *: with what makes up for stale "
    "gradients, which takes time too."
)


def padded_summary(
    machine: Machine, plan: PaddedPlan, warnings: Sequence[str], found: Sequence[PaddedResult | str]
) -> dict[str, Any]:
    """Everything, as JSON has it; times in seconds."""
    results = [_result(result) for result in found if isinstance(result, PaddedResult)]
    return waits_summary(machine, plan, warnings, results, [result for result in found if isinstance(result, str)])


def waits_summary(
    machine: Machine,
    plan: PaddedPlan | SeveralPlan,
    warnings: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    refused: Sequence[str] = (),
) -> dict[str, Any]:
    """What a bench whose gradients wait came to, as JSON has it."""
    return {
        "machine": asdict(machine),
        "warnings": list(warnings),
        "settings": {"pad_seconds": plan.pad, "repeats": plan.repeats, "seconds": plan.seconds},
        "results": list(results),
        "refused": list(refused),
    }


def speed_of(result: PaddedResult | SeveralResult) -> dict[str, Any]:
    """The speed of one result beside the ideal, as JSON has it."""
    return {
        "updates_per_second": plain(result.updates_per_second),
        "ideal_updates_per_second": result.ideal,
        "share_of_ideal": result.updates_per_second.median / result.ideal,
    }


def _result(result: PaddedResult) -> dict[str, Any]:
    runner = result.runner
    return {
        "case": result.case.name,
        "rule": runner.rule,
        "kind": runner.kind,
        "workers": runner.workers,
        "staleness": runner.staleness,
        **speed_of(result),
        "predicted_updates_per_second": result.predicted,
        "cpu_seconds": plain(result.cpu),
        "voluntary_switches": plain(result.voluntary),
        "involuntary_switches": plain(result.involuntary),
        "compensation": list(result.compensation),
    }


def padded_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a summary, one a case."""
    return waits_report(found, _table, _NOTE)


def waits_report(
    found: Mapping[str, Any], table: Callable[[Sequence[Mapping[str, Any]]], Table], note: str
) -> RenderableType:
    """A table for the results of each case, and a note."""
    pad = f"each gradient waits {1e3 * found['settings']['pad_seconds']:g} ms besides"
    return Group(*by_case(found, pad, found["results"], lambda rows: [table(rows)]), Text(), Text(note, "dim"))


def _name(row: Mapping[str, Any]) -> str:
    rule = f"{row['rule']}*" if row["compensation"] else row["rule"]
    return rule if row["kind"] == "processes" else f"{rule}, {row['kind']}"


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = ruled_table()
    table.add_column("rule", no_wrap=True)
    for heading in ("W", "τ", "updates/s", "range", "ideal", "switches", "cpu", "model"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        speed = row["updates_per_second"]
        switches = f"{row['voluntary_switches']['median']:.1f} + {row['involuntary_switches']['median']:.1f}"
        table.add_row(
            _name(row),
            f"{row['workers']}",
            "–" if row["staleness"] is None else f"{row['staleness']}",
            f"{speed['median']:,.0f}",
            f"{speed['min']:,.0f}–{speed['max']:,.0f}",
            f"{100 * row['share_of_ideal']:.0f} %",
            switches,
            f"{1e6 * row['cpu_seconds']['median']:,.0f}",
            f"{row['predicted_updates_per_second']:,.0f}",
        )
    return table
