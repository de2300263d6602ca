"""Comparing outcomes: pair by pair, and along the way of two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from hogwild.determinism.distance import Divergence, distance, json_number
from hogwild.determinism.predictions import PredictionDivergence, prediction_distance
from hogwild.determinism.subject import Outcome, logits_of

_DRAWS = 2_000  # of the bootstrap
_MOST_MARKS = 24  # versions that are traced
_TRACED_BYTES = 1 << 29  # of the traces of all runs


@dataclass(frozen=True)
class Comparison:
    """How far two outcomes are apart: as states, and in what they predict where that is known."""

    divergence: Divergence
    predictions: PredictionDivergence | None = None

    @property
    def identical(self) -> bool:
        """True when every byte of the two states is equal."""
        return self.divergence.identical

    def to_dict(self) -> dict[str, Any]:
        """The overall measures as JSON values; the tensors are left out but for the worst."""
        whole = self.divergence.to_dict()
        tensors = whole.pop("tensors")
        assert isinstance(tensors, list)
        whole["tensors_differing"] = [tensor["name"] for tensor in tensors if not tensor["identical"]]
        whole["predictions"] = self.predictions.to_dict() if self.predictions else None
        return whole


def compare(a: Outcome, b: Outcome) -> Comparison:
    """Compare two outcomes."""
    first, second = logits_of(a), logits_of(b)
    predictions = None
    if first is not None and second is not None:
        predictions = prediction_distance(first[0], second[0], first[1])
    return Comparison(distance(a.state, b.state), predictions)


def compare_all(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """Every pair of them, in order."""
    return [compare(a, b) for a, b in combinations(outcomes, 2)]


def worst(comparisons: Sequence[Comparison]) -> Comparison:
    """The pair that is furthest apart."""
    return max(comparisons, key=lambda c: (not c.identical, c.divergence.relative_l2, c.divergence.max_abs))


@dataclass(frozen=True)
class Course:
    """How two runs drift apart: the relative L2 between their versions, by number of updates."""

    updates: tuple[int, ...]
    relative_l2: tuple[float, ...]

    @property
    def slope(self) -> float | None:
        """The slope of ln(distance) against updates while the distance grows, per update; None for fewer than three
        versions that differ. It is the rate at which a small difference grows, as a Lyapunov exponent is."""
        found = [(u, d) for u, d in zip(self.updates, self.relative_l2, strict=True) if 0 < d < math.inf]
        top = max((d for _, d in found), default=0.0)
        rising = []
        for update, value in found:
            rising.append((update, value))
            if value >= top / 2:
                break
        if len(rising) < 3:
            return None
        x, y = np.array([u for u, _ in rising], dtype=float), np.log([d for _, d in rising])
        return float(np.polyfit(x, y, 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        distances = [json_number(value) for value in self.relative_l2]
        return {"updates": list(self.updates), "relative_l2": distances, "slope": self.slope}


def course(a: Outcome, b: Outcome) -> Course:
    """The distance between the versions that both runs traced."""
    common = sorted(set(a.trace) & set(b.trace))
    return Course(tuple(common), tuple(distance(a.trace[v], b.trace[v]).relative_l2 for v in common))


def courses(outcomes: Sequence[Outcome]) -> list[Course]:
    """Of every pair."""
    return [course(a, b) for a, b in combinations(outcomes, 2)]


def marks(updates: int, nbytes: int, runs: int) -> frozenset[int]:
    """The versions to trace in a run of so many updates: close together at first, then further and further apart.

    At most so many that the traces of all runs stay within 512 MiB, for a model of `nbytes`; never fewer than the first
    and the last.
    """
    number = max(2, min(_MOST_MARKS, _TRACED_BYTES // max(1, nbytes * runs)))
    return frozenset(round(updates ** (k / (number - 1))) for k in range(number)) if updates > 1 else frozenset({1})


def spread(values: Sequence[float], seed: int = 0) -> tuple[float, float, float, float]:
    """(mean, standard deviation, and its 95 % interval by the percentile bootstrap) of one value per run.

    The deviation is the unbiased one, with N − 1 (Jordan 2024, arXiv 2304.01910, on why it matters for few runs).
    """
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        return float(sample.mean()), 0.0, 0.0, 0.0
    drawn = np.random.default_rng(seed).choice(sample, (_DRAWS, len(sample)))
    low, high = np.percentile(drawn.std(axis=1, ddof=1), [2.5, 97.5])
    return float(sample.mean()), float(sample.std(ddof=1)), float(low), float(high)
