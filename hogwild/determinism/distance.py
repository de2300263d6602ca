"""How far two states are apart, whoever trained them: bytes, relative L2, maximum, ULP and cosine.

Relative L2 of weights is the measure of Zhuang et al. 2021 (arXiv 2106.11872); ULP distance is defined in
`ulp`. What the states do to predictions is measured in `predictions`.

One convention for values that are not finite: NaN equals NaN of any payload, and an infinity equals itself,
at distance 0; against anything else their distance is infinite, and so are max |a − b| and relative L2 of the
tensor and of the whole, while cosine is undefined. Positions that are not finite in both states are left out
of the norms. Bytes are compared as they are: −0.0 against 0.0, and two payloads of NaN, are not identical, at
distance 0 and 0 ULP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hogwild.determinism.measure import DistanceSums, compare_tensors
from hogwild.determinism.states import OpenedState, StateEntry, StateLike, digest, opened
from hogwild.determinism.ulp import FORMATS
from hogwild.errors import ArgumentError, printable, short_traceback, some_of

__all__ = ["Divergence", "Mismatch", "TensorDivergence", "digest", "distance"]

JsonValue = str | int | float | bool | None
_LIMITED = ("relative_l2", "max_abs", "max_ulp")


@dataclass(frozen=True)
class TensorDivergence:
    """How far two tensors of one name, dtype and shape are apart.

    Attributes:
        name, dtype, shape: of the tensor; the dtype as torch and numpy write it.
        size: real numbers compared; a complex element counts as two, here and in all that follows.
        identical: same bytes.
        differing: values whose bytes differ.
        nonfinite: values that are NaN or infinite in one of the states at least.
        relative_l2: ‖a − b‖ / ‖a‖; infinite where only a is zero.
        max_abs: max |a − b|.
        max_ulp: the largest distance in ULP, exact; infinity where a NaN meets a number; None for integers,
            bool and 8-bit floats.
        cosine: ⟨a, b⟩ / (‖a‖ ‖b‖); None where a norm is zero or the distance infinite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    identical: bool
    differing: int
    nonfinite: int
    relative_l2: float
    max_abs: float
    max_ulp: int | float | None
    cosine: float | None

    def to_dict(self) -> dict[str, object]:
        """The same as JSON values, with the attributes as keys; an infinite number is the string `"inf"`."""
        return _to_dict(self)


@dataclass(frozen=True)
class Mismatch:
    """An entry that both states have and that cannot be measured: its name and what each state has there."""

    name: str
    a: str
    b: str

    def to_dict(self) -> dict[str, str]:
        """The same as JSON values."""
        return {**vars(self)}


@dataclass(frozen=True)
class Divergence:
    """How far two states are apart.

    The overall measures are over all floating-point and complex tensors that both states have in one dtype
    and shape. Integer and bool tensors are compared each for itself but stay out of the overall measures,
    where one counter of batches would outweigh all weights; those that differ are named in
    `changed_integers`. So a small `relative_l2` alone does not say that two states agree: ask `within`.

    Attributes:
        identical: same names, dtypes, shapes and bytes; the same as having equal digests.
        relative_l2: ‖a − b‖ / ‖a‖ over all values together; infinite where only a is zero.
        max_abs: max |a − b|.
        max_ulp: the largest distance in ULP, exact; infinity where a NaN meets a number; None where no tensor has one.
        cosine: ⟨a, b⟩ / (‖a‖ ‖b‖); None where a norm is zero or the distance infinite.
        size: real numbers compared, in all tensors, integers and bool included; a complex element counts as two.
        differing: of these, values whose bytes differ.
        nonfinite: of these, values that are NaN or infinite in one of the states at least.
        worst: the tensor with the largest relative L2, then the largest max |a − b|, among those whose bytes
            differ; an integer or bool tensor only where no other differs; None where none differs.
        tensors: every compared tensor, in name order.
        missing: names in `a` that `b` lacks.
        unexpected: names in `b` that `a` lacks.
        reshaped: entries whose shapes differ.
        retyped: entries whose dtypes differ (an entry may be in both).
        changed_integers: integer and bool tensors whose bytes differ.
        unmeasured: entries of either state that are no tensors; nothing here speaks of them.
    """

    identical: bool
    relative_l2: float
    max_abs: float
    max_ulp: int | float | None
    cosine: float | None
    size: int
    differing: int
    nonfinite: int
    worst: str | None
    tensors: tuple[TensorDivergence, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    reshaped: tuple[Mismatch, ...] = ()
    retyped: tuple[Mismatch, ...] = ()
    changed_integers: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()

    def within(self, limit: float, measure: str = "relative_l2") -> bool:
        """Whether the states agree up to `limit` on `relative_l2`, `max_abs` or `max_ulp`.

        Never so where an entry is missing, unexpected, reshaped or retyped, or an integer or bool tensor
        differs.

        Raises:
            ArgumentError: another measure, or a limit below zero or NaN.
        """
        refuse_limit(limit, measure)
        if self.missing or self.unexpected or self.reshaped or self.retyped or self.changed_integers:
            return False
        if measure == "max_ulp" and any(t.max_ulp is None and not t.identical for t in self.tensors):
            return False
        found: float | None = getattr(self, measure)
        return self.identical if found is None else found <= limit

    def to_dict(self) -> dict[str, object]:
        """The same as JSON values, with the attributes as keys; an infinite number is the string `"inf"`."""
        return _to_dict(self)

    def summary(self) -> str:
        """One line for a person."""
        if self.identical:
            parts = [f"identical: {len(self.tensors):,} tensors, {self.size:,} values"]
        elif not self.tensors:
            parts = ["not comparable: no tensor in common by name, shape and dtype"]
        else:
            ulp = "" if self.max_ulp is None else f", max {self.max_ulp:,} ULP"
            cosine = "" if self.cosine is None else f", cosine {self.cosine:.6g}"
            worst = "" if self.worst is None else f", worst {printable(self.worst)}"
            parts = [
                f"{self._shared()}relative L2 {self.relative_l2:.3g}, max |a − b| {self.max_abs:.3g}{ulp}{cosine}",
                f"{self.differing:,} of {self.size:,} values differ{worst}",
            ]
        for field in ("missing", "unexpected", "reshaped", "retyped", "changed_integers", "unmeasured"):
            names = [getattr(entry, "name", entry) for entry in getattr(self, field)]
            if names:
                parts.append(f"{field.replace('_', ' ')}: {some_of(names)}")
        return "; ".join(parts)

    def _shared(self) -> str:
        """How many of all tensors are compared; empty where all are."""
        others = {entry.name for entry in (*self.reshaped, *self.retyped)}
        names = len(self.tensors) + len(self.missing) + len(self.unexpected) + len(others)
        if len(self.tensors) == names:
            return ""
        return f"{len(self.tensors):,} of {names:,} tensors comparable (same name, shape and dtype): "


def refuse_limit(limit: float, measure: str, called: str = "tolerance") -> None:
    """Refuse what cannot be a limit on a measure; `called` as whoever gave it calls it.

    Raises:
        ArgumentError: another measure than `relative_l2`, `max_abs` or `max_ulp`, or a limit that is no number ≥ 0.
    """
    if measure not in _LIMITED:
        raise ArgumentError(f"measure {measure!r} has no tolerance; {', '.join(_LIMITED)} have")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        raise ArgumentError(f"{called} {limit!r} is not a number from 0 on")


@short_traceback
def distance(a: StateLike, b: StateLike) -> Divergence:
    """Measure how far two states are apart, with float64 sums, one tensor in memory at a time.

    Args:
        a: a module, a state dict of tensors or numpy arrays of any device, shape, strides and dtype, or the
            path of a safetensors file or of a `torch.save` file, which is read with `weights_only=True`. `a`
            is the reference: its norm divides.
        b: the other, of any of these kinds.

    Returns:
        The measures per tensor and overall, and the names of what could not be compared.

    Raises:
        ArgumentError: an argument is no state, or holds a tensor without dense bytes (sparse, quantized,
        meta). RunDirectoryError: a file is missing, damaged, or would have to run code to be loaded.
    """
    with opened(a, "state a") as state_a, opened(b, "state b") as state_b:
        return _divergence(state_a, state_b)


def _divergence(a: OpenedState, b: OpenedState) -> Divergence:
    tensors: list[TensorDivergence] = []
    reshaped: list[Mismatch] = []
    retyped: list[Mismatch] = []
    overall = DistanceSums()
    names_a, names_b = set(a.names), set(b.names)
    for name in sorted(names_a & names_b):
        entry_a, entry_b = a.entry(name), b.entry(name)
        if entry_a.shape != entry_b.shape:
            reshaped.append(Mismatch(name, str(entry_a.shape), str(entry_b.shape)))
        if entry_a.dtype != entry_b.dtype:
            retyped.append(Mismatch(name, entry_a.dtype, entry_b.dtype))
        if (entry_a.shape, entry_a.dtype) != (entry_b.shape, entry_b.dtype):
            continue
        totals = compare_tensors(entry_a, entry_b)
        if entry_a.format.floating:
            overall.add(totals)
        tensors.append(_tensor_divergence(name, entry_a, totals))
    differing = sum(tensor.differing for tensor in tensors)
    return Divergence(
        identical=not reshaped and not retyped and names_a == names_b and differing == 0,
        relative_l2=overall.relative_l2,
        max_abs=overall.max_abs,
        max_ulp=overall.max_ulp,
        cosine=overall.cosine,
        size=sum(tensor.size for tensor in tensors),
        differing=differing,
        nonfinite=sum(tensor.nonfinite for tensor in tensors),
        worst=_worst(tensors),
        tensors=tuple(tensors),
        missing=tuple(sorted(names_a - names_b)),
        unexpected=tuple(sorted(names_b - names_a)),
        reshaped=tuple(reshaped),
        retyped=tuple(retyped),
        changed_integers=tuple(t.name for t in tensors if not t.identical and not _is_floating(t)),
        unmeasured=tuple(sorted({*a.unmeasured, *b.unmeasured})),
    )


def _tensor_divergence(name: str, entry: StateEntry, totals: DistanceSums) -> TensorDivergence:
    return TensorDivergence(
        name=name,
        dtype=entry.dtype,
        shape=entry.shape,
        size=totals.size,
        identical=totals.differing == 0,
        differing=totals.differing,
        nonfinite=totals.nonfinite,
        relative_l2=totals.relative_l2,
        max_abs=totals.max_abs,
        max_ulp=totals.max_ulp,
        cosine=totals.cosine,
    )


def _is_floating(tensor: TensorDivergence) -> bool:
    return FORMATS[tensor.dtype].floating


def _worst(tensors: Iterable[TensorDivergence]) -> str | None:
    changed = [tensor for tensor in tensors if not tensor.identical]
    if not changed:
        return None
    return max(changed, key=lambda t: (_is_floating(t), t.relative_l2, t.max_abs)).name


def json_number(value: int | float | None) -> JsonValue:
    """A number as strict JSON can hold it: infinity as the string `"inf"`, which `float()` reads back."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _to_dict(found: TensorDivergence | Divergence) -> dict[str, object]:
    """Its attributes as JSON values."""
    return {name: _json_value(value) for name, value in vars(found).items()}


def _json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, TensorDivergence | Mismatch):
        return value.to_dict()
    return json_number(value) if isinstance(value, int | float) else value
