"""What more cores would do, by the model fitted to a profile: predictions, and marked as such wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hogwild.bench.cases import ruled_table
from hogwild.bench.model import StepModel
from hogwild.bench.profile import Profile
from hogwild.rules.registry import rule_class

CORES = (1, 2, 4, 8, 16, 32, 64, 128)
_NOTE = (
    "Predicted, not measured: updates a second over one worker's, with as many workers as cores, by a model fitted to "
    "the fastest repeats of the profile at one worker and at two (hogwild/bench/model.py has its formulas). An * "
    "stands where it was fitted. A rule with a staleness is given enough of it for all workers."
)


def fitted_model(one: Profile, two: Profile | None, cores: int, bandwidth: float) -> StepModel:
    """The model of the rule, the problem and the kind that these profiles are of."""
    return StepModel.fitted(
        {phase: spread.least for phase, spread in one.phases.items()},
        {phase: spread.least for phase, spread in two.phases.items()} if two is not None else None,
        in_turn=rule_class(one.rule).exact,
        cores=cores,
        commit_bytes=float(one.traffic or 0),
        bandwidth=bandwidth,
    )


def predictions(found: Sequence[Profile | str], cores: int, bandwidth: float) -> list[dict[str, Any]]:
    """One for each case, rule and kind that was profiled at one worker; in seconds, and updates a second.

    `cores` and `bandwidth`, bytes a second of all cores together, are those of the machine that was profiled.
    """
    profiles = {(p.case.name, p.rule, p.kind, p.workers): p for p in found if isinstance(p, Profile)}
    rows = []
    for (case, rule, kind, workers), one in profiles.items():
        if workers != 1:
            continue
        two = profiles.get((case, rule, kind, 2)) if cores > 1 else None
        model = fitted_model(one, two, cores, bandwidth)
        measured = {number: p for (*key, number), p in profiles.items() if key == [case, rule, kind]}
        rows.append(
            {
                "case": case,
                "rule": rule,
                "kind": kind,
                "model": asdict(model),
                "cores": list(CORES),
                "updates_per_second": [model.updates_per_second(number, number) for number in CORES],
                "measured": {number: number / p.step.median for number, p in measured.items()},
            }
        )
    return rows


def prediction_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The table of the predictions, with a note that says what they are."""
    table = ruled_table()
    table.add_column("predicted, × one worker; cores", no_wrap=True)
    for number in CORES:
        table.add_column(f"{number}*" if number < 3 else f"{number}", justify="right", no_wrap=True)
    for case in dict.fromkeys(row["case"] for row in rows):
        table.add_row(Text(case, "bold"))
        for row in (row for row in rows if row["case"] == case):
            speeds = row["updates_per_second"]
            table.add_row(f"  {row['rule']}, {row['kind']}", *(f"{speed / speeds[0]:.1f}" for speed in speeds))
    return Group(table, Text(_NOTE, "dim"))
