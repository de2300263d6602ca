"""The mean over a few runs, and how well it is known.

The interval is Student's t, not the bootstrap: of three or five seeds a percentile bootstrap gives intervals that hold
the mean far less often than they claim, because it can draw no value that was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MeanInterval:
    """The mean of some values, one a run, and half the width of its interval; None of a single value, whose spread
    nobody knows."""

    mean: float
    half: float | None
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanInterval:
        """Of at least one value: mean ± t(0.975, N − 1) · s ÷ √N, with the unbiased standard deviation s."""
        number, mean = len(values), math.fsum(values) / len(values)
        if number < 2:
            return cls(mean, None, number)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (number - 1))
        return cls(mean, t_quantile(number - 1) * deviation / math.sqrt(number), number)

    def overlaps(self, other: MeanInterval) -> bool:
        """True where the intervals share a value; an interval that is not known overlaps with all."""
        if self.half is None or other.half is None:
            return True
        return abs(self.mean - other.mean) <= self.half + other.half


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that a variable of Student's distribution stays within, on both sides, with that probability.

    By bisection of the closed form for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| ≤ t)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
