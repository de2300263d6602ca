"""Every measure against an independent computation in exact arithmetic or numpy, on random states."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from hogwild.determinism.distance import digest, distance

INF = math.inf
MEASURED = ["bool", "uint8", "int8", "int16", "int64", "uint64", "float16", "float32", "float64", "complex64"]


def root(value: Fraction) -> float:
    with localcontext() as context:
        context.prec = 40
        return float((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())


def rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return INF


def reals(array):
    """The values as exact fractions; complex ones as real and imaginary parts."""
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        flat = flat.view(np.float32 if array.dtype == np.complex64 else np.float64)
    return [Fraction(x.item()) for x in flat]


def expected_measures(a, b):
    """Relative L2, max |a − b| and cosine of finite values, in exact arithmetic."""
    x, y = reals(a), reals(b)
    aa, bb = sum(v * v for v in x), sum(v * v for v in y)
    dd = sum((v - w) ** 2 for v, w in zip(x, y, strict=True))
    ab = sum(v * w for v, w in zip(x, y, strict=True))
    relative = root(dd / aa) if aa else (INF if dd else 0.0)
    largest = max((abs(v - w) for v, w in zip(x, y, strict=True)), default=Fraction(0))
    cosine = math.copysign(root(ab * ab / (aa * bb)), 1 if ab >= 0 else -1) if aa and bb else None
    return relative, largest, cosine


def expected_ulp(a, b):
    """Differences of ranks in the order of bit patterns, by Python integers."""
    if a.dtype.kind not in "fc":
        return None
    real = np.dtype(f"f{a.dtype.itemsize // (2 if a.dtype.kind == 'c' else 1)}")

    def ordinals(array):
        flat = array.reshape(-1).view(real)
        patterns = np.abs(flat).view(f"u{real.itemsize}")
        return [-int(p) if v < 0 else int(p) for p, v in zip(patterns, flat, strict=True)]

    return max((abs(m - n) for m, n in zip(ordinals(a), ordinals(b), strict=True)), default=0)


def elements(dtype):
    if dtype.kind in "fc":
        options = {"allow_nan": False, "allow_infinity": False}
        if dtype.kind == "c":
            part = st.floats(width=32, **options)
            return st.builds(complex, part, part)
        return st.floats(width=8 * dtype.itemsize, **options)
    return hnp.from_dtype(dtype)


@st.composite
def pairs(draw):
    dtype = np.dtype(draw(st.sampled_from(MEASURED)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    a = draw(hnp.arrays(dtype, shape, elements=elements(dtype)))
    if draw(st.booleans()):
        return a, draw(hnp.arrays(dtype, shape, elements=elements(dtype)))
    b = a.copy()
    if b.size:
        b.reshape(-1)[draw(st.integers(0, b.size - 1))] = draw(elements(dtype))
    return a, b


def nearly(found, expected):
    return found == pytest.approx(expected, rel=1e-11, abs=0)


@given(pairs())
def test_one_tensor_is_measured_as_exact_arithmetic_does(pair):
    a, b = pair
    divergence = distance({"w": a}, {"w": b})
    (tensor,) = divergence.tensors
    relative, largest, cosine = expected_measures(a, b)
    assert nearly(tensor.relative_l2, relative)
    assert nearly(tensor.max_abs, rounded(largest))
    assert tensor.max_ulp == expected_ulp(a, b)
    if cosine is None:
        assert tensor.cosine is None
    else:
        assert tensor.cosine == pytest.approx(cosine, abs=1e-11)
    assert tensor.identical == divergence.identical == (a.tobytes() == b.tobytes())
    words = [np.frombuffer(x.tobytes(), f"V{x.itemsize // (2 if x.dtype.kind == 'c' else 1)}") for x in (a, b)]
    assert tensor.differing == sum(p.tobytes() != q.tobytes() for p, q in zip(*words, strict=True))
    assert (tensor.name, tensor.dtype, tensor.shape) == ("w", a.dtype.name, a.shape)


@given(st.lists(pairs(), min_size=1, max_size=5))
def test_overall_measures_are_those_of_all_floating_point_values_in_one_vector(found):
    states = [{f"t{i}": pair[side] for i, pair in enumerate(found)} for side in (0, 1)]
    divergence = distance(*states)
    floats = [pair for pair in found if pair[0].dtype.kind in "fc"]
    x, y = ([v for pair in floats for v in reals(pair[side])] for side in (0, 1))
    aa = sum(v * v for v in x)
    dd = sum((v - w) ** 2 for v, w in zip(x, y, strict=True))
    assert nearly(divergence.relative_l2, root(dd / aa) if aa else (INF if dd else 0.0))
    assert divergence.max_ulp == max((expected_ulp(a, b) for a, b in floats), default=None)
    assert divergence.changed_integers == tuple(
        f"t{i}" for i, (a, b) in enumerate(found) if a.dtype.kind not in "fc" and a.tobytes() != b.tobytes()
    )
    assert divergence.size == sum(len(reals(a)) for a, _ in found)
    assert divergence.differing == sum(t.differing for t in divergence.tensors)
    assert divergence.identical == (digest(states[0]) == digest(states[1]))


@settings(max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.sampled_from([1, 1000, 32768, 70_001]),
)
def test_long_tensors_are_measured_as_numpy_does(seed, name, size):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(size, generator=generator, dtype=torch.float64).to(getattr(torch, name))
    b = (a.double() + 1e-2 * torch.randn(size, generator=generator, dtype=torch.float64)).to(a.dtype)
    b[: size // 3] = a[: size // 3]
    x, y = a.double().numpy(), b.double().numpy()
    divergence = distance({"w": a}, {"w": b})
    assert nearly(divergence.relative_l2, np.linalg.norm(x - y) / np.linalg.norm(x))
    assert divergence.max_abs == np.abs(x - y).max()
    assert divergence.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-12)
    assert divergence.differing == np.count_nonzero(x != y)


@pytest.mark.parametrize("kind", ["module", "state dict", "numpy"])
def test_one_ulp_in_one_weight_is_found_there(kind):
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    b = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    b.load_state_dict(a.state_dict())
    assert distance(a, b).identical
    with torch.no_grad():
        b[2].weight[1, 3] = torch.nextafter(b[2].weight[1, 3], torch.tensor(INF))
    states = [a, b]
    if kind != "module":
        states = [m.state_dict() for m in states]
    if kind == "numpy":
        states = [{k: v.numpy() for k, v in s.items()} for s in states]
    divergence = distance(*states)
    assert not divergence.identical
    assert (divergence.worst, divergence.differing, divergence.max_ulp) == ("2.weight", 1, 1)
    assert [t.name for t in divergence.tensors if not t.identical] == ["2.weight"]
    assert "worst 2.weight" in divergence.summary()
    assert "\n" not in divergence.summary()
