"""The sums behind every measure of distance between two tensors of one dtype and shape.

Shapes: `V` real numbers, read in chunks so that the float64 copies stay in the processor's cache. All work is
float64.

Sums of squares are exact fractions between chunks and scaled by powers of two inside them, so neither huge
nor tiny values overflow or vanish, and the overall measures do not depend on the order of the tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hogwild.determinism.states import StateEntry
from hogwild.determinism.ulp import Bits, Floats, Format, gap, no_distance, ulp_distance

_CHUNK = 1 << 15
_SAFE = 2.0**400


@dataclass
class DistanceSums:
    """What was counted, summed and found over one tensor, or summed and found over many.

    Attributes:
        size: values compared.
        differing: values whose bytes differ.
        nonfinite: values that are NaN or infinite in one state at least.
        unbounded: some value is NaN or infinite in one state and not the same in the other.
        max_abs: max |a − b|.
        max_ulp: the largest ULP distance; infinity for a NaN against a number; None where no ULP is defined.
        aa: Σ a², over values finite in both states; bb, ab and dd = Σ (a − b)² likewise.
    """

    size: int = 0
    differing: int = 0
    nonfinite: int = 0
    unbounded: bool = False
    max_abs: float = 0.0
    max_ulp: int | float | None = None
    aa: Fraction = Fraction(0)
    bb: Fraction = Fraction(0)
    ab: Fraction = Fraction(0)
    dd: Fraction = Fraction(0)

    def add(self, other: DistanceSums) -> None:
        """Take in the sums and maxima of another tensor, but not its counts."""
        self.unbounded |= other.unbounded
        self.max_abs = max(self.max_abs, other.max_abs)
        if other.max_ulp is not None:
            self.max_ulp = max(self.max_ulp or 0, other.max_ulp)
        self.aa += other.aa
        self.bb += other.bb
        self.ab += other.ab
        self.dd += other.dd

    @property
    def relative_l2(self) -> float:
        """‖a − b‖ / ‖a‖; infinite where only a is zero, or NaN or infinity stands in one state alone."""
        if self.unbounded:
            return math.inf
        if self.aa == 0:
            return math.inf if self.dd else 0.0
        return _root(self.dd / self.aa)

    @property
    def cosine(self) -> float | None:
        """⟨a, b⟩ / (‖a‖ ‖b‖); None where a norm is zero, or NaN or infinity stands in one state alone."""
        if self.unbounded or self.aa == 0 or self.bb == 0:
            return None
        size = min(1.0, _root(self.ab**2 / (self.aa * self.bb)))
        return size if self.ab >= 0 else -size


def compare_tensors(a: StateEntry, b: StateEntry) -> DistanceSums:
    """Compare two tensors of one dtype and one shape, value by value."""
    form, bits_a, bits_b = a.format, a.bits, b.bits
    totals = DistanceSums(size=bits_a.size, max_ulp=None if form.infinity is None else 0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, bits_a.size, _CHUNK):
            part_a, part_b = bits_a[start : start + _CHUNK], bits_b[start : start + _CHUNK]
            differing = int(np.count_nonzero(part_a != part_b))
            if differing == 0:
                _add_equal(totals, form.decode(part_a))
                continue
            totals.differing += differing
            if form.floating:
                _add_floats(totals, form, part_a, part_b)
            else:
                _add_integers(totals, form, part_a, part_b)
    return totals


def _add_equal(totals: DistanceSums, x: Floats) -> None:
    if not math.isfinite(_peak(x)):
        finite = np.isfinite(x)
        totals.nonfinite += x.size - int(np.count_nonzero(finite))
        x = x[finite]
    squares = _dot(x, x)
    totals.aa += squares
    totals.bb += squares
    totals.ab += squares


def _add_floats(totals: DistanceSums, form: Format, bits_a: Bits, bits_b: Bits) -> None:
    if form.infinity is not None:
        steps = int(ulp_distance(bits_a, bits_b, form.infinity).max())
        found = math.inf if steps == no_distance(bits_a.dtype) else steps
        totals.max_ulp = max(totals.max_ulp or 0, found)
    x, y = form.decode(bits_a), form.decode(bits_b)
    if not (math.isfinite(_peak(x)) and math.isfinite(_peak(y))):
        x, y = _drop_nonfinite(totals, x, y)
    difference = x - y
    totals.max_abs = max(totals.max_abs, _peak(difference))
    if math.isfinite(_peak(difference)):
        squares = _dot(difference, difference)
    else:  # finite values whose difference float64 cannot hold
        difference = x / 2 - y / 2
        squares = 4 * _dot(difference, difference)
    _add_products(totals, x, y, squares)


def _drop_nonfinite(totals: DistanceSums, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    finite = np.isfinite(x) & np.isfinite(y)
    totals.nonfinite += x.size - int(np.count_nonzero(finite))
    if np.any(~finite & (x != y) & ~(np.isnan(x) & np.isnan(y))):
        totals.unbounded = True
        totals.max_abs = math.inf
    return x[finite], y[finite]


def _add_integers(totals: DistanceSums, form: Format, bits_a: Bits, bits_b: Bits) -> None:
    sign = form.bits.type(form.sign)
    difference = gap(bits_a ^ sign, bits_b ^ sign).astype(np.float64)
    totals.max_abs = max(totals.max_abs, _peak(difference))
    _add_products(totals, form.decode(bits_a), form.decode(bits_b), _dot(difference, difference))


def _add_products(totals: DistanceSums, x: Floats, y: Floats, squares: Fraction) -> None:
    totals.aa += _dot(x, x)
    totals.bb += _dot(y, y)
    totals.ab += _dot(x, y)
    totals.dd += squares


def _peak(x: Floats) -> float:
    """Max |x|, NaN if there is one, 0 for no values."""
    return float(max(x.max(), -x.min())) if x.size else 0.0


def _dot(x: Floats, y: Floats) -> Fraction:
    """Σ x y of finite values, summed by numpy in pairs: the threads of BLAS would decide the last bits."""
    x, exponent_x = _scaled(x)
    y, exponent_y = (x, exponent_x) if y is x else _scaled(y)
    exponent = exponent_x + exponent_y
    total = Fraction(float((x * y).sum()))
    return total * Fraction(2) ** exponent if exponent else total


def _scaled(x: Floats) -> tuple[Floats, int]:
    """`x` × 2^−e and e, with e = 0 unless squares of `x` would overflow or vanish."""
    peak = _peak(x)
    if peak == 0 or 1 / _SAFE < peak < _SAFE:
        return x, 0
    exponent = math.frexp(peak)[1]
    return np.ldexp(x, -exponent), exponent


def _root(value: Fraction) -> float:
    """√value for any non-negative fraction, also where the fraction itself is beyond float64."""
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    try:
        return math.ldexp(math.sqrt(value / Fraction(4) ** shift), shift)
    except OverflowError:
        return math.inf
