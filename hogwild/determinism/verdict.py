"""Verdict: what a check found, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hogwild.config import RunConfig
from hogwild.determinism.advice import conclusion_in_words
from hogwild.determinism.compare import Comparison, Course, spread
from hogwild.determinism.controls import Controls
from hogwild.determinism.damage import Damage, damage_in_words
from hogwild.determinism.distance import json_number, refuse_limit
from hogwild.determinism.explain import DifferenceSource
from hogwild.determinism.first import FirstDifference
from hogwild.errors import as_html, some_of
from hogwild.run.audit import Audit

_NO_CONTROLS = (
    "none: this training is repeated as it is; only one by hogwild.train can be given another seed or other workers"
)


@dataclass(frozen=True)
class Tolerance:
    """How far apart runs may be: `limit` on `relative_l2`, `max_abs` or `max_ulp`.

    Raises:
        ArgumentError: another measure, or a limit that is no number ≥ 0.
    """

    limit: float
    measure: str = "relative_l2"

    def __post_init__(self) -> None:
        refuse_limit(self.limit, self.measure)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"limit": json_number(self.limit), "measure": self.measure}

    def allows(self, comparison: Comparison) -> bool:
        """True where two runs are within it."""
        return comparison.identical or comparison.divergence.within(self.limit, self.measure)


@dataclass(frozen=True)
class Repeat:
    """One of the runs: its digest, and where known, its updates, accuracy, samples per second, the ages of its reads in
    updates (mean, p99, max), its rule, its workers, and how many of them made its updates."""

    digest: str
    updates: int | None = None
    accuracy: float | None = None
    samples_per_second: float | None = None
    staleness: tuple[float, float, int] | None = None
    rule: str | None = None
    workers: int | None = None
    active: int | None = None


@dataclass(frozen=True)
class Remedy:
    """The rule that gives the same bits here: its flags, its speed relative to the checked one, its accuracy, and the
    arguments that Python takes in place of the flags."""

    flags: str
    relative_speed: float
    accuracy: float | None
    digests: int
    runs: int
    arguments: str


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        title: what was checked.
        config: its settings, where it is a training by `hogwild.train`.
        runs: one each.
        comparisons: every pair of runs.
        worst: the pair that is furthest apart.
        first_difference: where runs first differ; None where they do not, or nothing was noted on the way.
        controls: what runs varied in one known way came to; empty where they could not be made.
        damage: of racing and of scheduling, over the first updates, then over whole runs; empty where not measured.
        audit: the share of the computed gradient that was applied; None where it could not be measured.
        sources: what each source of differences does alone, where that was asked for.
        remedy: what would give the same bits; None where they are the same already.
        courses: how each pair drifts apart.
        tolerance: what was allowed.
        ages: how many updates, over all runs, were computed on a version 0, 1, 2, … updates old.
        seconds: that the check took.
        typed: whether it was asked for on the command line, whose flags its advice then names.
        one_process: whether a function of the caller's was repeated in this process.
    """

    title: str
    config: RunConfig | None
    runs: tuple[Repeat, ...]
    comparisons: tuple[Comparison, ...]
    worst: Comparison
    first_difference: FirstDifference | None
    controls: Controls = field(default_factory=Controls)
    damage: tuple[Damage, ...] = ()
    audit: Audit | None = None
    sources: tuple[DifferenceSource, ...] = ()
    remedy: Remedy | None = None
    courses: tuple[Course, ...] = ()
    tolerance: Tolerance | None = None
    ages: tuple[int, ...] = ()
    seconds: float = 0.0
    typed: bool = False
    one_process: bool = False

    @property
    def identical(self) -> bool:
        """True when all runs have the same bits."""
        return self.digests == 1

    @property
    def digests(self) -> int:
        """How many different states the runs ended in."""
        return len({run.digest for run in self.runs})

    @property
    def passed(self) -> bool:
        """True when all runs have the same bits, those on several machines too, or every pair is within the
        tolerance."""
        pairs = [*self.comparisons, *self._on_machines]
        allows = self.tolerance.allows if self.tolerance is not None else lambda pair: pair.identical
        return all(map(allows, pairs))

    @property
    def _on_machines(self) -> list[Comparison]:
        return [found.comparison for found in self.controls.machines]

    @property
    def harm(self) -> float | None:
        """The distance between the runs, as a multiple of what one flipped bit does; None where that is unknown."""
        flipped = self.controls.one_ulp
        if flipped is None or not 0 < flipped.divergence.relative_l2 < math.inf:
            return None
        return self.worst.divergence.relative_l2 / flipped.divergence.relative_l2

    @property
    def headline(self) -> str:
        """What was checked, on one line."""
        runs = f"{len(self.runs)} runs"
        lengths = self.lengths()
        if not lengths:
            return f"{self.title} · {runs}"
        span = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
        return f"{self.title} · {runs} of {span} update{'s' * (lengths[-1] != 1)}"

    def lengths(self) -> list[int]:
        """The numbers of updates that runs made, each once, sorted."""
        return sorted({run.updates for run in self.runs if run.updates is not None})

    @property
    def conclusion(self) -> str:
        """The verdict and the advice."""
        return conclusion_in_words(self)

    def lines(self, *, verbose: bool = False) -> Iterator[tuple[str, str]]:
        """What was found: (what, finding), for a person; `verbose` adds the numbers behind what is said in words."""
        yield "identical", self._identical()
        if self.first_difference is not None:
            yield "first difference", self.first_difference.summary()
        if not self.identical:
            yield "parameters", self._parameters()
        if self.worst.divergence.nonfinite:
            found = self.worst.divergence
            yield (
                "not finite",
                f"{found.nonfinite:,} of {found.size:,} values are NaN or infinite in one run or both",
            )
        if self.worst.divergence.unmeasured:
            yield "not compared", f"{some_of(self.worst.divergence.unmeasured)}: neither a tensor nor an array"
        yield from self._predictions()
        yield from self._controls()
        if self.damage:
            yield "race damage", damage_in_words(self.damage)
        for one in self.damage if verbose else ():
            yield "race damage", one.in_numbers
        if self.audit is not None:
            yield "audit", self.audit.summary()
        yield from self._staleness()

    def _identical(self) -> str:
        if self.identical:
            return f"yes: one digest in {len(self.runs)} runs, {self.runs[0].digest[:16]}…"
        return f"no: {self.digests} digests in {len(self.runs)} runs"

    def _parameters(self) -> str:
        found = self.worst.divergence
        parts = [f"relative L2 {found.relative_l2:.3g} between the worst pair", *self._by_the_tolerance()]
        if found.max_abs == 0 and found.differing and not found.changed_integers:
            signs = "1 value differs" if found.differing == 1 else f"{found.differing:,} values differ"
            parts.append(f"{signs} in the sign of a zero or the bits of a NaN")
        if found.worst is not None:
            parts.append(f"most in {found.worst}")
        for name, entries in (("missing", found.missing), ("unexpected", found.unexpected)):
            if entries:
                parts.append(f"{name} {', '.join(entries[:3])}")
        if found.reshaped or found.retyped:
            parts.append(f"other shape or dtype in {', '.join(m.name for m in (*found.reshaped, *found.retyped)[:3])}")
        if found.changed_integers:
            allowed = ", which no tolerance allows" if self.tolerance is not None else ""
            parts.append(f"integers differ in {some_of(found.changed_integers)}{allowed}")
        return "; ".join(parts)

    def _by_the_tolerance(self) -> Iterator[str]:
        """How far apart runs are by its measure, where that is another one."""
        if self.tolerance is None or self.tolerance.measure == "relative_l2":
            return
        found = [getattr(pair.divergence, self.tolerance.measure) for pair in self.comparisons]
        if known := [value for value in found if value is not None]:
            yield f"{self.tolerance.measure} {max(known):.3g} at most"

    def _predictions(self) -> Iterator[tuple[str, str]]:
        pairs = [pair.predictions for pair in self.comparisons if pair.predictions is not None]
        parts = []
        if pairs and not self.identical:
            churn = max(pair.churn for pair in pairs)
            parts.append(f"churn {100 * churn:.2g} % of {pairs[0].samples:,} at most")
        accuracies = [run.accuracy for run in self.runs if run.accuracy is not None]
        if accuracies and all(0 <= one <= 1 for one in accuracies):  # a share, and neither in percent nor NaN
            mean, deviation, low, high = spread(accuracies)
            interval = f" [{100 * low:.2g}–{100 * high:.2g}]" if deviation else ""
            parts.append(f"error {100 * (1 - mean):.3g} % ± {100 * deviation:.2g}{interval}")
        if parts:
            yield "predictions", "; ".join(parts)

    def _controls(self) -> Iterator[tuple[str, str]]:
        controls = self.controls
        if controls.one_ulp is not None:
            told = f"relative L2 {controls.one_ulp.divergence.relative_l2:.3g}"
            if self.harm is not None and not self.identical:
                told += f": the runs are {_times(self.harm)} × as far apart as one flipped bit takes them"
            yield "one-ULP control", told
        if controls.serial is not None:
            serial = controls.serial
            told = "identical" if serial.identical else f"DIFFERS: relative L2 {serial.divergence.relative_l2:.3g}"
            yield "serial control", told
        for name, control in (("other seed", controls.seed), ("other workers", controls.workers)):
            if control is not None:
                same = "identical" if control.identical else f"relative L2 {control.divergence.relative_l2:.3g}"
                churn = "" if control.predictions is None else f", churn {100 * control.predictions.churn:.2g} %"
                yield name, same + churn
        for on in controls.machines:
            far = on.comparison.divergence.relative_l2
            same = "identical" if on.comparison.identical else f"relative L2 {far:.3g}"
            yield f"{on.nodes} machines", same + (" between two runs that average" if on.apart else "")
        if self.config is None:
            yield "controls", _NO_CONTROLS

    def _staleness(self) -> Iterator[tuple[str, str]]:
        if ages := self._ages():
            yield "staleness", f"mean {ages['mean']:.2f}, p99 {ages['p99']:.0f}, max {ages['max']}"

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values: what `hogwild check --json` prints."""
        return {
            "title": self.title,
            "headline": self.headline,
            "lines": [list(line) for line in self.lines()],
            "identical": self.identical,
            "passed": self.passed,
            "digests": [run.digest for run in self.runs],
            "runs": len(self.runs),
            "updates": self.runs[0].updates,
            "first_difference": self.first_difference.to_dict() if self.first_difference else None,
            "divergence": {**self.worst.to_dict(), **self._over_runs()},
            "controls": {**self.controls.to_dict(), "harm": self.harm},
            "damage": [one.to_dict() for one in self.damage],
            "audit": self.audit.to_dict() if self.audit else None,
            "staleness": self._ages(),
            "ages": list(self.ages),
            "sources": [source.to_dict() for source in self.sources],
            "courses": [course.to_dict() for course in self.courses],
            "remedy": vars(self.remedy) if self.remedy else None,
            "tolerance": self.tolerance.to_dict() if self.tolerance else None,
            "verdict": self.conclusion,
            "seconds": self.seconds,
        }

    def _over_runs(self) -> dict[str, Any]:
        """The measures over all runs and pairs."""
        accuracies = [run.accuracy for run in self.runs if run.accuracy is not None and math.isfinite(run.accuracy)]
        mean, deviation, low, high = spread(accuracies) if accuracies else (None, None, None, None)
        distances = [pair.divergence.relative_l2 for pair in self.comparisons]
        slopes = [course.slope for course in self.courses if course.slope is not None]
        middle = median(distances)
        return {
            "median_relative_l2": middle if math.isfinite(middle) else str(middle),
            "accuracy": {"mean": mean, "std": deviation, "std_interval": [low, high], "runs": accuracies},
            "slope": median(slopes) if slopes else None,
        }

    def _ages(self) -> dict[str, float] | None:
        """How old reads were, in updates, over all runs."""
        ages = [run.staleness for run in self.runs if run.staleness is not None]
        if not ages:
            return None
        mean = sum(age[0] for age in ages) / len(ages)
        return {"mean": mean, "p99": max(age[1] for age in ages), "max": max(age[2] for age in ages)}

    def __repr__(self) -> str:
        """What a prompt, or a test that failed, shows of it."""
        return f"<Verdict {self.title}: {self.conclusion}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(str(self))

    def __str__(self) -> str:
        """What a person sees at the end of a check, as plain text."""
        found = [f"  {what:<18} {finding}" for what, finding in self.lines()]
        return "\n".join([self.headline, *found, f"verdict: {self.conclusion}"])


def _times(factor: float) -> str:
    """A factor to two digits, written out up to a billion."""
    return f"{float(f'{factor:.2g}'):,.0f}" if 100 <= factor < 1e9 else f"{factor:.2g}"
