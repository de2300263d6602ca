"""A bench of several machines as plain values, which `hogwild bench --nodes --json` prints, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from hogwild.bench.cases import ruled_table
from hogwild.bench.padded_table import speed_of, waits_report, waits_summary
from hogwild.bench.several import AVERAGE_EVERY, SeveralPlan, SeveralResult
from hogwild.bench.summary import Machine, plain
from hogwild.rules.registry import SAME_BITS

_NOTE = (
    f"N: machines, with a worker each, which train by {SAME_BITS}; here, processes. delay: ms from one to another, one "
    "way; 0 is loopback. updates/s: median and range. ideal: share of machines ÷ wait. ddp: gradients a second of "
    "DistributedDataParallel on gloo, one all-reduce a step, the same batch on each machine. × ddp: the ratio, each "
    f"from one repeat. apart: updates/s of all, which train apart by hogwild and average every {AVERAGE_EVERY} updates."
)


def several_summary(
    machine: Machine, plan: SeveralPlan, warnings: Sequence[str], found: Sequence[SeveralResult]
) -> dict[str, Any]:
    """Everything, as JSON has it; times in seconds."""
    return waits_summary(machine, plan, warnings, [_result(result) for result in found])


def _result(result: SeveralResult) -> dict[str, Any]:
    return {
        "case": result.case.name,
        "rule": SAME_BITS,
        "nodes": result.nodes,
        "delay_seconds": result.delay,
        "staleness": result.staleness,
        **speed_of(result),
        "ddp_updates_per_second": plain(result.ddp),
        "over_ddp": plain(result.over_ddp),
        "average_every": AVERAGE_EVERY,
        "averaging_updates_per_second": plain(result.averaging),
    }


def several_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a summary, one a case."""
    return waits_report(found, _table, _NOTE)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = ruled_table()
    for heading in ("N", "delay", "τ", "updates/s", "range", "ideal", "ddp", "× ddp", "range", "apart"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        speed, over = row["updates_per_second"], row["over_ddp"]
        table.add_row(
            f"{row['nodes']}",
            f"{1e3 * row['delay_seconds']:g}",
            f"{row['staleness']}",
            _rate(speed["median"]),
            f"{_rate(speed['min'])}–{_rate(speed['max'])}",
            f"{100 * row['share_of_ideal']:.0f} %",
            _rate(row["ddp_updates_per_second"]["median"]),
            f"{over['median']:.1f}",
            f"{over['min']:.1f}–{over['max']:.1f}",
            _rate(row["averaging_updates_per_second"]["median"]),
        )
    return table


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
