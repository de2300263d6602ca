"""Two benches compared: each contender's speed beside the serial loop, now ÷ then, with the range it may have.

The ratio to the serial loop of the same repeat is compared, not samples per second: a machine that is slower today is
slower for both. The range is the widest that the two ranges allow: the worst repeat now over the best then, to the best
now over the worst then. Where it holds 1 the two ranges overlap, and nothing is said to have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hogwild.bench.contenders import SERIAL
from hogwild.bench.measure import Spread
from hogwild.bench.saved import SavedBench
from hogwild.bench.threshold import Threshold
from hogwild.errors import ArgumentError, some_of

SLOWER, FASTER, NOISE = "slower", "faster", "within the noise"
_PLACE = ("processor", "cores")  # what makes another machine; the rest makes other versions
_LEFT_OUT = ("load",)


@dataclass(frozen=True)
class SpeedChange:
    """One contender in one case: its ratio to the serial loop then and now, and now ÷ then."""

    case: str
    contender: str
    is_rule: bool
    then: Spread
    now: Spread

    @property
    def ratio(self) -> Mapping[str, float]:
        """now ÷ then: of the medians, and the least and the most that the ranges allow."""
        return {
            "median": self.now.median / self.then.median,
            "min": self.now.least / self.then.most,
            "max": self.now.most / self.then.least,
        }

    @property
    def verdict(self) -> str:
        """Slower or faster where the ranges do not overlap, else within the noise."""
        ratio = self.ratio
        return SLOWER if ratio["max"] < 1 else FASTER if ratio["min"] > 1 else NOISE


@dataclass(frozen=True)
class BenchComparison:
    """Two benches compared.

    Attributes:
        then, now: the benches.
        changes: of what both measured, the serial loop left out.
        threshold: what fails; None where nothing does.
    """

    then: SavedBench
    now: SavedBench
    changes: tuple[SpeedChange, ...]
    threshold: Threshold | None = None

    @property
    def failed(self) -> list[SpeedChange]:
        """The rules for which the threshold holds. What is measured beside them is not this package's to guard."""
        if self.threshold is None:
            return []
        return [change for change in self.changes if change.is_rule and self.threshold.holds(change.ratio)]

    @property
    def other_machine(self) -> Mapping[str, tuple[Any, Any]]:
        """Name → (then, now) of what is another machine: processor and cores."""
        return {name: pair for name, pair in self._machine().items() if name in _PLACE}

    @property
    def other_versions(self) -> Mapping[str, tuple[Any, Any]]:
        """Name → (then, now) of system, Python and torch, where they differ; and of how it was measured."""
        found = {name: pair for name, pair in self._machine().items() if name not in _PLACE}
        return {**found, **_differing(self.then.settings, self.now.settings)}

    def _machine(self) -> Mapping[str, tuple[Any, Any]]:
        differing = _differing(self.then.machine, self.now.machine)
        return {name: pair for name, pair in differing.items() if name not in _LEFT_OUT}

    def serial(self, case: str) -> float | None:
        """Samples per second of the serial loop, now ÷ then."""
        if case in self.then.serial and case in self.now.serial:
            return self.now.serial[case] / self.then.serial[case]
        return None

    @property
    def verdict(self) -> str:
        """In words, what became of the rules."""
        rules = [change for change in self.changes if change.is_rule]
        slower = sum(change.verdict == SLOWER for change in rules)
        faster = sum(change.verdict == FASTER for change in rules)
        told = f"of {len(rules)} measurements of rules {slower} are slower, {faster} faster"
        told += f" and {len(rules) - slower - faster} within the noise"
        if self.threshold is None:
            return f"{told}."
        failed = self.failed
        if not failed:
            return f"{told}; {self.threshold.text} holds for none."
        named = some_of([f"{one.case}: {one.contender}" for one in failed], between="; ")
        return f"{told}; {self.threshold.text} holds for {named}."

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values: `comparison` of `hogwild bench --json`."""
        return {
            "saved": self.then.when or None,
            "other_machine": {name: list(pair) for name, pair in self.other_machine.items()},
            "other_versions": {name: list(pair) for name, pair in self.other_versions.items()},
            "serial": {case: self.serial(case) for case in self.now.ratios},
            "results": [
                {
                    "case": one.case,
                    "contender": one.contender,
                    "rule": one.is_rule,
                    "then": one.then.median,
                    "now": one.now.median,
                    "ratio": dict(one.ratio),
                    "verdict": one.verdict,
                }
                for one in self.changes
            ],
            "fail_if": self.threshold.text if self.threshold else None,
            "failed": [{"case": one.case, "contender": one.contender} for one in self.failed],
            "only_then": list(only_in(self.then, self.now)),
            "only_now": list(only_in(self.now, self.then)),
            "verdict": self.verdict,
        }


def compare_benches(then: SavedBench, now: SavedBench, threshold: Threshold | None = None) -> BenchComparison:
    """Compare what both measured."""
    changes = []
    for case, rows in now.ratios.items():
        for contender, ratio in rows.items():
            before = then.ratios.get(case, {}).get(contender)
            if contender != SERIAL and ratio is not None and before is not None:
                changes.append(SpeedChange(case, contender, contender in now.rules, before, ratio))
    return BenchComparison(then, now, tuple(changes), threshold)


def only_in(one: SavedBench, other: SavedBench) -> Iterator[str]:
    """What the one measured and the other did not: a case, or a contender of a case that both have."""
    for case, rows in one.ratios.items():
        if case not in other.ratios:
            yield case
            continue
        yield from (
            f"{case}: {name}" for name, ratio in rows.items() if ratio is not None and not other.ratios[case].get(name)
        )


def refuse_nothing_in_common(then: SavedBench, cases: Sequence[str], contenders: Sequence[str], file: str) -> None:
    """Refuse, before hours of measuring, to compare with a bench that measured nothing of the same.

    Raises:
        ArgumentError: no rule in no case is in both.
    """
    common = [case for case in cases if case in then.ratios]
    if not common:
        has = some_of(list(then.ratios)) or "nothing"
        raise ArgumentError(
            f"--compare {file} has {has}, and this bench measures {some_of(cases)}; choose the same with --problems, "
            f"--batch-size and --optimizer, or --quick"
        )
    if not any(then.ratios[case].get(name) for case in common for name in contenders if name in then.rules):
        raise ArgumentError(
            f"--compare {file} has no rule that this bench measures; it has {some_of(sorted(then.rules)) or 'nothing'}"
        )


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}
