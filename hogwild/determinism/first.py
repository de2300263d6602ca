"""Where do runs first differ? The first update, the parameter, and how many of its values.

what the runs noted           → the bracket (a, b]: versions equal at a, different at b
reruns up to b, noting more   → a narrower bracket, as long as reruns differ there too (the rules with the same bits)
reruns up to b                → the values that differ

A run notes whole versions (its trace), and the bits of more of them, by digest (its seals).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hogwild.determinism.distance import TensorDivergence, distance, json_number
from hogwild.determinism.subject import Outcome, OwnTraining, Subject, Variation

_RERUNS = 6  # at most, to see a difference again
_MANY = 10_000  # ULP, from which on their number says nothing to a person
_FINER = 32  # versions whose bits are noted, in a bracket that is looked into


@dataclass(frozen=True)
class FirstDifference:
    """The first difference between runs.

    Attributes:
        after: all runs have the same bits at this version, as far as was noted.
        version: and not at this one.
        parameters: the tensors that differ there, or, where `seen_at` is later, at that version.
        parameter: the one of them with the most values that differ; None where nobody noted which.
        values: how many of its values differ, at version `seen_at`; None where that was not seen.
        ulp: the largest distance of two of them, in units in the last place.
        seen_at: the version at which `values` and `ulp` were counted.
        exact: versions are exact here. Under the rules in place they are not: others write while a copy is made.
    """

    after: int
    version: int
    parameters: tuple[str, ...] = ()
    parameter: str | None = None
    values: int | None = None
    ulp: int | float | None = None
    seen_at: int | None = None
    exact: bool = True

    @property
    def update(self) -> int | None:
        """The update that made the first version that differs, where that is known exactly."""
        return self.after if self.exact and self.version == self.after + 1 else None

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "update": self.update,
            "after": self.after,
            "version": self.version,
            "parameter": self.parameter,
            "parameters": list(self.parameters),
            "values": self.values,
            "ulp": json_number(self.ulp),
            "seen_at": self.seen_at,
        }

    def summary(self) -> str:
        """One line for a person."""
        if self.update is not None:
            where = f"at update {self.update:,}"
        else:
            where = f"between update {self.after:,} and update {self.version:,}"
        if self.parameter is None or self.values is None:
            return where
        many = "1 value" if self.values == 1 else f"{self.values:,} values"
        ulp = "" if self.ulp is None or self.ulp > _MANY else f", up to {self.ulp:,} ULP"
        rest = len(self.parameters) - 1
        others = f", and {rest:,} other tensor{'s' * (rest > 1)}" if rest else ""
        later = "" if self.seen_at == self.version else f", as seen {self.seen_at:,} updates in"
        return f"{where}: {many} of {self.parameter}{ulp}{others}{later}"


def find_first(subject: Subject, own: OwnTraining | None, runs: Sequence[Outcome]) -> FirstDifference | None:
    """The first difference between runs; None where they have none, or noted nothing on the way."""
    found = _bracket(runs)
    if found is None or own is None:
        return _with_values(found, runs) if found else None
    if own.rule_of().same_bits:
        found = _narrowed(subject, own, found)
        return _seen_again(subject, own, found) or _with_values(found, runs)
    first = _with_values(found, runs)
    return replace(first, exact=own.rule_of().versioned) if first else None


def _bracket(runs: Sequence[Outcome]) -> tuple[int, int] | None:
    """The narrowest (a, b]: all runs are equal at a and some differ at b, from what they noted."""
    brackets = [bracket for a, b in combinations(runs, 2) if (bracket := _between(a, b)) is not None]
    return min(brackets, key=lambda bracket: (bracket[1], -bracket[0]), default=None)


def _between(a: Outcome, b: Outcome) -> tuple[int, int] | None:
    equal: dict[int, bool] = {}
    if a.run is not None and b.run is not None:
        for version in set(a.run.seals) & set(b.run.seals):
            equal[version] = a.run.seals[version].digest == b.run.seals[version].digest
    for version in set(a.trace) & set(b.trace) - set(equal):
        equal[version] = distance(a.trace[version], b.trace[version]).identical
    wrong = min((version for version, same in equal.items() if not same), default=None)
    if wrong is None:
        return None
    return max((version for version in equal if version < wrong), default=0), wrong


def _narrowed(subject: Subject, own: OwnTraining, bracket: tuple[int, int]) -> tuple[int, int]:
    """Rerun up to the end of the bracket, noting more versions, until it holds one update or reruns agree."""
    after, version = bracket
    while version - after > 1:
        every = max(1, (version - after) // _FINER)
        inner = None
        for pair in _reruns(subject, own, version, {"digest_every": every}):
            inner = _between(*pair)
            if inner is not None:
                break
        if inner is None or inner[1] - inner[0] >= version - after:
            return after, version
        after, version = inner
    return after, version


def _seen_again(subject: Subject, own: OwnTraining, bracket: tuple[int, int]) -> FirstDifference | None:
    """What differs at the end of the bracket, from reruns that end there."""
    for a, b in _reruns(subject, own, bracket[1], {}):
        if a.digest != b.digest:
            return _with_values(bracket, (a, b))
    return None


def _reruns(
    subject: Subject, own: OwnTraining, updates: int, settings: dict[str, Any]
) -> Iterator[tuple[Outcome, Outcome]]:
    """Pairs of reruns that end after so many updates: each new one with every earlier one.

    A rerun of the whole length is given as it was: where several batches make one update, an epoch may end in fewer.
    """
    length = {} if updates == own.updates else {"epochs": None, "updates": updates}
    variation = Variation({**length, **settings}, at=frozenset({updates}), stops=False)
    made = [subject.repeat(variation)]
    for _ in range(_RERUNS - 1):
        made.append(subject.repeat(variation))
        yield from ((earlier, made[-1]) for earlier in made[:-1])


def _with_values(bracket: tuple[int, int] | None, runs: Sequence[Outcome]) -> FirstDifference | None:
    """What differs at the first version, from `bracket` on, that two runs traced and that differs."""
    if bracket is None:
        return None
    after, version = bracket
    for seen in sorted({v for run in runs for v in run.trace if v >= version}):
        for a, b in combinations([run for run in runs if seen in run.trace], 2):
            changed = [one for one in distance(a.trace[seen], b.trace[seen]).tensors if not one.identical]
            if changed:
                names, most = tuple(one.name for one in changed), _most(changed)
                return FirstDifference(after, version, names, most.name, most.differing, most.max_ulp, seen)
    return FirstDifference(after, version)


def _most(tensors: Sequence[TensorDivergence]) -> TensorDivergence:
    return max(tensors, key=lambda tensor: (tensor.differing, tensor.relative_l2))
