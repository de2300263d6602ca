"""Bit patterns as ordered integers: what the bytes of a dtype mean, and how many values lie between two.

Shapes: `V` real numbers in one flat array. A complex element counts as two real numbers.

ULP distance is the number of steps of `numpy.nextafter` that lead from one value to the other. The bit
patterns of IEEE 754 values of one sign are ordered as unsigned integers, so the distance is a difference of
integers and exact (Dawson, "Comparing Floating Point Numbers", 2012; Goldberg 1991 on the unit in the last
place). Hence:

- −0.0 and +0.0 are one point (`nextafter` goes from the smallest negative value to the smallest positive one
  in two steps): distance 0, although their bytes differ;
- infinity is the neighbour of the largest finite value: distance 1;
- NaN has no place in the order: two NaN of any payload are at distance 0, a NaN and a number have no
  distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """How the bytes of one dtype read as real numbers.

    Attributes:
        bits: the unsigned integer dtype as wide as one real number of this format.
        decode: bits `(V,)` to float64 `(V,)`; exact but for 64-bit integers beyond 2**53, which are rounded.
        floating: whether the values are floating point; otherwise integers or bool.
        infinity: the bit pattern of +infinity where ULP distance is defined, else None.
        sign: the bit to flip so that signed integers order as unsigned ones; 0 for all other formats.
    """

    bits: np.dtype[Any]
    decode: Callable[[Bits], Floats]
    floating: bool
    infinity: int | None = None
    sign: int = 0


def _to_float64(values: NDArray[Any]) -> Floats:
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaN
        return values.astype(np.float64)


def _decode_as(dtype: str, bits: Bits) -> Floats:
    return _to_float64(bits.view(dtype))


def _decode_bfloat16(bits: Bits) -> Floats:
    return _to_float64((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))


@cache
def _float8_values(name: str) -> Floats:
    patterns = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    return _to_float64(patterns.to(torch.float32).numpy())


def _decode_float8(name: str, bits: Bits) -> Floats:
    return _float8_values(name)[bits]


def _floating(width: int, infinity: int) -> Format:
    return Format(np.dtype(f"u{width}"), partial(_decode_as, f"f{width}"), floating=True, infinity=infinity)


def _integer(width: int, signed: bool) -> Format:
    decode = partial(_decode_as, f"{'i' if signed else 'u'}{width}")
    return Format(np.dtype(f"u{width}"), decode, floating=False, sign=1 << (8 * width - 1) if signed else 0)


_HALF = _floating(2, 0x7C00)
_SINGLE = _floating(4, 0x7F80_0000)
_DOUBLE = _floating(8, 0x7FF0_0000_0000_0000)

FORMATS: dict[str, Format] = {
    "bool": _integer(1, signed=False),
    **{f"uint{8 * width}": _integer(width, signed=False) for width in (1, 2, 4, 8)},
    **{f"int{8 * width}": _integer(width, signed=True) for width in (1, 2, 4, 8)},
    "float16": _HALF,
    "bfloat16": Format(np.dtype(np.uint16), _decode_bfloat16, floating=True, infinity=0x7F80),
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex32": _HALF,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    **{
        name: Format(np.dtype(np.uint8), partial(_decode_float8, name), floating=True)
        for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    },
}
"""Every dtype that can be measured, by the name that torch and numpy share."""


def gap(a: Bits, b: Bits) -> Bits:
    """|a − b| of unsigned integers `(V,)`, exact."""
    return np.maximum(a, b) - np.minimum(a, b)


def no_distance(dtype: np.dtype[Any]) -> int:
    """The value by which `ulp_distance` says "a NaN and a number": all ones, more than any real distance."""
    return int(np.iinfo(dtype).max)


def ulp_distance(a: Bits, b: Bits, infinity: int) -> Bits:
    """How many representable values lie between the floating-point values of two arrays of bit patterns.

    Args:
        a: bit patterns `(V,)`, V ≥ 1, of an IEEE 754 binary format or bfloat16, in the unsigned integer of
            its width.
        b: the same for the other values.
        infinity: the bit pattern of +infinity in that format.

    Returns:
        Distances `(V,)` in the same unsigned dtype. They cannot overflow: the greatest, between the two
        infinities, is twice the pattern of infinity. `no_distance(dtype)` stands where exactly one of the two
        is NaN, 0 where both are.
    """
    sign = a.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    magnitude_a, magnitude_b = a & ~sign, b & ~sign
    same_sign = (a ^ b) < sign
    distance = np.where(same_sign, gap(magnitude_a, magnitude_b), magnitude_a + magnitude_b)
    if max(int(magnitude_a.max()), int(magnitude_b.max())) > infinity:
        nan_a, nan_b = magnitude_a > infinity, magnitude_b > infinity
        distance[nan_a & nan_b] = 0
        distance[nan_a ^ nan_b] = no_distance(a.dtype)
    return distance
