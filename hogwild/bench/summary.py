"""A benchmark as plain values: what `hogwild bench --json` prints, and what the table shows."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch

from hogwild.bench.contenders import ALTERNATIVES, APART, CUT, QUICK_RULES, SEVERAL_PROCESSES, Contender
from hogwild.bench.measure import CaseResult, Plan, Spread
from hogwild.rules.registry import LEAST_OVERHEAD, NAMES, rule_class

_BUSY = 0.2  # load per core above which figures are not to be trusted
_FEW = 5  # repeats below which a median says little


@dataclass(frozen=True)
class Machine:
    """Where it was measured: `load` is the load average of the last minute before the start, where there is one."""

    system: str
    processor: str
    cores: int
    python: str
    torch: str
    load: float | None

    @classmethod
    def here(cls) -> Machine:
        """This one, now."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return cls(
            platform.platform(terse=True), _processor(), cores, platform.python_version(), str(torch.__version__), load
        )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - a pseudo file of Linux
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def warnings_of(machine: Machine, workers: int, repeats: int) -> list[str]:
    """What keeps the figures from being trusted, one line each."""
    found = []
    if machine.load is not None and machine.load > _BUSY * machine.cores:
        found.append(
            f"the load average was {machine.load:.1f} on {machine.cores} cores at the start: other programs run, and "
            f"take time from contenders, most from those with several workers"
        )
    if workers > machine.cores:
        found.append(f"{workers} workers share {machine.cores} cores")
    if repeats < _FEW:
        found.append(f"repeats {repeats}: medians of fewer than {_FEW} pairs say little")
    return found


def bench_summary(machine: Machine, plan: Plan, results: Sequence[CaseResult]) -> dict[str, Any]:
    """Everything, as JSON has it."""
    return {
        "machine": asdict(machine),
        "warnings": warnings_of(machine, plan.workers, plan.repeats),
        "settings": {
            "workers": plan.workers,
            "repeats": plan.repeats,
            "seconds": plan.seconds,
            "curves": plan.curves,
        },
        "contenders": [
            {
                "name": c.name,
                "about": c.about,
                "family": c.family,
                "rule": c.family in NAMES,
                "kind": c.kind or None,
                "workers": c.workers,
            }
            for c in plan.contenders
        ],
        "cases": [_case(plan, result) for result in results],
        "failed": failed(plan, results),
    }


def failed(plan: Plan, results: Sequence[CaseResult]) -> int:
    """Contenders that failed in some case; a refusal is no failure, nor is an alternative that did not finish."""
    return sum(
        any(not (failure.refused or failure.late) for failure in result.failures(contender.name))
        for result in results
        for contender in plan.contenders
    )


def _case(plan: Plan, result: CaseResult) -> dict[str, Any]:
    best = best_alternative(plan, result)
    return {
        "name": result.case.name,
        "problem": result.case.problem.name,
        "about": result.case.problem.about,
        "optimizer": result.case.optimizer,
        "batch_size": result.case.batch_size,
        "batches": result.batches,
        "target_loss": result.target,
        "best_alternative": best,
        "results": [_result(plan, result, contender, best) for contender in plan.contenders],
        "comparisons": list(_comparisons(plan, result)),
        "scaling": list(_scaling(plan, result)),
    }


def best_alternative(plan: Plan, result: CaseResult) -> str | None:
    """The alternative with the most samples per second, by its median; None where none did its work."""
    speeds = {
        contender.name: spread.median
        for contender in plan.contenders
        if contender.family in ALTERNATIVES
        and (spread := result.spread(contender.name, lambda outcome: outcome.samples_per_second))
    }
    return max(speeds, key=speeds.__getitem__, default=None)


def _cut_of(plan: Plan) -> Contender | None:
    """The loop by hand whose batches were cut before; None where it is not measured."""
    return next((contender for contender in plan.contenders if contender.family == CUT), None)


def _result(plan: Plan, result: CaseResult, contender: Contender, best: str | None) -> dict[str, Any]:
    name = contender.name
    spread, missed = result.seconds_to_target(name)
    memory = Spread.of([mean(outcome.pss) for outcome in result.outcomes(name) if outcome.pss])
    startup = result.spread(name, lambda outcome: outcome.startup_seconds)
    loss = result.spread(name, lambda outcome: outcome.loss)
    messages = [failure.message for failure in result.failures(name)]
    return {
        "name": name,
        "samples_per_second": plain(result.spread(name, lambda outcome: outcome.samples_per_second)),
        "over_serial": plain(result.ratio(name, "serial")),
        "over_cut": plain(result.ratio(name, cut.name)) if (cut := _cut_of(plan)) else None,
        "over_best_alternative": plain(result.ratio(name, best)) if best else None,
        "startup_seconds": startup.median if startup else None,
        "memory_per_worker": memory.median if memory else None,
        "loss": loss.median if loss else None,
        "seconds_to_target": plain(spread),
        "target_missed": missed,
        "unfinished": sum(failure.late for failure in result.failures(name)),
        "refused": any(failure.refused for failure in result.failures(name)),
        "failures": list(dict.fromkeys(messages)),
        "failed_runs": len(messages),
    }


def _comparisons(plan: Plan, result: CaseResult) -> Iterator[dict[str, Any]]:
    """The pairs that people ask for, beside those with the serial loop; each from the same repeat.

    One worker of each rule over the loop whose batches were cut before. Rules that lose no step, over the rule with the
    least overhead, of the same kind and number of workers; that rule over what else trains with several processes; and
    it and the one with the same bits over loops apart, of the same kind.
    """
    cut = _cut_of(plan)
    for alone in plan.contenders:
        if cut and alone.workers == 1 and alone.kind:
            yield {"of": alone.name, "over": cut.name, "ratio": plain(result.ratio(alone.name, cut.name))}
    everyone = [contender for contender in plan.contenders if contender.workers == plan.workers]
    for one in everyone:
        for other in everyone:
            rules = _is_exact(one.family) and other.family == LEAST_OVERHEAD
            against = one.family == LEAST_OVERHEAD and other.family in SEVERAL_PROCESSES
            machine = one.family in QUICK_RULES and other.family == APART
            if ((rules or machine) and one.kind == other.kind) or against:
                yield {"of": one.name, "over": other.name, "ratio": plain(result.ratio(one.name, other.name))}


def _is_exact(family: str) -> bool:
    return family in NAMES and rule_class(family).exact


def _scaling(plan: Plan, result: CaseResult) -> Iterator[dict[str, Any]]:
    """For each rule and kind measured at several numbers of workers: the speed over that of one worker in the same
    repeat, and the efficiency, which is that per worker. Of loops apart, one is the loop whose batches were cut."""
    cut = _cut_of(plan)
    one = {(APART, c.kind): cut for c in plan.contenders if c.family == APART and cut}
    one |= {(c.family, c.kind): c for c in plan.contenders if c.workers == 1 and c.kind}
    for (rule, kind), alone in one.items():
        several = [c for c in plan.contenders if (c.family, c.kind) == (rule, kind) and c.workers > 1]
        points = [
            {"workers": c.workers, "over_one": plain(ratio), "efficiency": ratio.median / c.workers}
            for c in (alone, *several)
            if (ratio := result.ratio(c.name, alone.name))
        ]
        if len(points) > 1:
            yield {"rule": rule, "kind": kind, "points": points}


def plain(spread: Spread | None) -> dict[str, Any] | None:
    """As JSON has it."""
    if spread is None:
        return None
    return {"median": spread.median, "min": spread.least, "max": spread.most, "runs": spread.number}
