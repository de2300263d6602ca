"""A bench whose speeds are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hogwild.bench.measure import CaseResult
from hogwild.bench.plan import BenchSettings, plan_of
from hogwild.bench.summary import Machine, bench_summary
from hogwild.bench.work import Measurement

MACHINE = Machine("a system", "a processor", 4, "3", "2", 0.1)
SERIAL = 1000.0  # samples per second


def bench_of(
    ratios: Mapping[str, Sequence[float]], machine: Machine = MACHINE, serial: float = SERIAL, problem: str = "mlp"
) -> dict[str, Any]:
    """The summary of a bench with these rules over the serial loop, one ratio a repeat; the other contenders are 1."""
    repeats = len(next(iter(ratios.values())))
    settings = BenchSettings(
        problems=[problem], batch_sizes=[64], contenders=list(ratios), quick=True, repeats=repeats, workers=2
    )
    plan = plan_of(settings)

    def attempts(family: str, workers: int) -> list[Measurement]:
        speeds = ratios.get(family, [1.0] * repeats) if workers > 1 else [1.0] * repeats
        return [Measurement(10, 640, 640 / (serial * speed), 0.1, 1.0) for speed in speeds]

    rows = {one.name: attempts(one.family, one.workers) for one in plan.contenders}
    return bench_summary(machine, plan, [CaseResult(plan.cases[0], 10, rows, {})])
