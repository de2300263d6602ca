"""A profile as plain values, which `hogwild bench --profile --json` prints, and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hogwild.bench.contenders import who
from hogwild.bench.profile import PHASES, Profile, ProfilePlan
from hogwild.bench.summary import Machine, plain

_SHORT = {"schedule": "sched.", "forward": "forw.", "backward": "backw.", "telemetry": "telem."}
_NOTE = """µs of one worker's time per update, medians; each moment counts once, for the innermost phase
schedule: ticket, seeds, read   commit: gather, clip, step   telemetry: finite check, journal, digests, copies
rest: the loop itself, and freeing the gradient
timers: time with these timers over that without
limit: µs that what a commit must read (parameters, gradient, moments) and write take at the rate of a plain copy,
which also loads the lines it writes to: a step in place does not, and may be under the limit"""


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
    machine = found["machine"]
    head = f"{machine['processor']} · {machine['cores']} cores · Python {machine['python']} · torch {machine['torch']}"
    rate = f"a copy reads and writes {found['copy_bytes_per_second'] / 1e9:.1f} GB/s, one thread"
    parts: list[RenderableType] = [Text(head, "bold"), Text(rate)]
    parts.extend(Text(f"warning: {line}", "yellow") for line in found["warnings"])
    for case in dict.fromkeys(row["case"] for row in found["profiles"]):
        parts.extend([Text(), Text(case, "bold"), _table([row for row in found["profiles"] if row["case"] == case])])
    parts.extend(Text(f"refused: {line}", "dim") for line in found["refused"])
    return Group(*parts, Text(), Text(_NOTE, "dim"))


def _table(profiles: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, show_edge=False, header_style="dim")
    table.add_column("µs", no_wrap=True)
    for heading in ("step", *(_SHORT.get(phase, phase) for phase in PHASES), "limit", "timers"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in profiles:
        table.add_row(f"{row['rule']}, {who(row['kind'], row['workers'])}", *_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{1e6 * row['step']['median']:,.0f}"
    for phase in PHASES:
        yield f"{1e6 * row['phases'][phase]['median']:,.0f}"
    yield "–" if row["commit_limit"] is None else f"{1e6 * row['commit_limit']:,.1f}"
    yield f"{row['timers']['median']:.2f}"
