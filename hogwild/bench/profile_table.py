"""A profile as plain values, which `hogwild bench --profile --json` prints, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import by_case, ruled_table
from hogwild.bench.predict import prediction_table
from hogwild.bench.profile import PHASES, Profile, ProfilePlan
from hogwild.bench.summary import Machine, plain

_WIDEST = 4  # columns of figures beside each other
_HOLDS = {
    "schedule": "ticket, seeds, pointing",
    "batch": "the samples",
    "forward": "the loss",
    "backward": "its gradient",
    "wait": "locks, version, turn",
    "commit": "gather, clip, step",
    "telemetry": "finite?, journal, digests",
    "rest": "loop, freeing",
}
_NOTE = (
    "µs of one worker's time per update, medians; each moment counts once, for the innermost phase. limit: what a "
    "commit must read (parameters, gradient, moments) and write, at the rate of a plain copy, which also loads the "
    "lines it writes to: a step in place does not, and may be under it. timers: time with these timers over that "
    "without."
)


def profile_summary(
    machine: Machine, plan: ProfilePlan, rate: float, warnings: Sequence[str], found: Sequence[Profile | str]
) -> dict[str, Any]:
    """Everything, as JSON has it; times in seconds."""
    return {
        "machine": asdict(machine),
        "warnings": list(warnings),
        "settings": {"workers": plan.allow, "repeats": plan.repeats, "seconds": plan.seconds},
        "copy_bytes_per_second": rate,
        "profiles": [_profile(profile) for profile in found if isinstance(profile, Profile)],
        "refused": [profile for profile in found if isinstance(profile, str)],
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "case": profile.case.name,
        "problem": profile.case.problem.name,
        "optimizer": profile.case.optimizer,
        "batch_size": profile.case.batch_size,
        "parameters": profile.parameters,
        "rule": profile.rule,
        "kind": profile.kind,
        "workers": profile.workers,
        "updates": profile.updates,
        "step": plain(profile.step),
        "phases": {phase: plain(spread) for phase, spread in profile.phases.items()},
        "timers": plain(profile.timers),
        "commit_bytes": profile.traffic,
        "commit_limit": profile.limit,
        "commit_over_limit": profile.phases["commit"].median / profile.limit if profile.limit else None,
    }


def profile_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a summary, one a case."""
    rate = f"a copy reads and writes {found['copy_bytes_per_second'] / 1e9:.1f} GB/s, one thread"
    parts = [*by_case(found, rate, found["profiles"], _tables), Text(), Text(_NOTE, "dim")]
    if found.get("predicted"):
        parts.extend([Text(), prediction_table(found["predicted"])])
    return Group(*parts)


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    return [_table(rows[i : i + _WIDEST]) for i in range(0, len(rows), _WIDEST)]


def _table(profiles: Sequence[Mapping[str, Any]]) -> Table:
    table = ruled_table()
    table.add_column("µs", no_wrap=True)
    for row in profiles:
        table.add_column(f"{row['rule']}\n{row['kind']}\n{row['workers']}", justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    for phase in PHASES:
        table.add_row(phase, *(_microseconds(row["phases"][phase]["median"]) for row in profiles), _HOLDS[phase])
    table.add_section()
    table.add_row("step", *(_microseconds(row["step"]["median"]) for row in profiles), "all of these")
    table.add_row("limit", *(_microseconds(row["commit_limit"]) for row in profiles), "commit at memory speed")
    table.add_row("timers", *(f"{row['timers']['median']:.2f} ×" for row in profiles), "what they cost")
    return table


def _microseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{1e6 * seconds:,.0f}" if seconds >= 9.5e-6 else f"{1e6 * seconds:.1f}"
