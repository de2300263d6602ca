"""ULP distance against numpy's nextafter and spacing, and against the rank of every 16-bit value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hogwild
from hogwild.determinism.flip import add_one_ulp
from hogwild.determinism.ulp import FORMATS, no_distance, ulp_distance

FLOATS = [np.float16, np.float32, np.float64]
finite = st.floats(allow_nan=False, allow_infinity=False)


def ulps(a, b, dtype):
    form = FORMATS[np.dtype(dtype).name]
    bits_a, bits_b = (np.atleast_1d(np.asarray(x, dtype=dtype)).view(form.bits) for x in (a, b))
    return [int(value) for value in ulp_distance(bits_a, bits_b, form.infinity)]


@pytest.mark.parametrize("dtype", FLOATS)
@given(start=finite, steps=st.integers(0, 40), up=st.booleans())
def test_each_step_of_nextafter_is_one(dtype, start, steps, up):
    with np.errstate(over="ignore", under="ignore"):
        x = y = dtype(start)
        walked = 0
        for _ in range(steps):
            onward = np.nextafter(y, dtype(np.inf if up else -np.inf))
            walked += int(onward != y)  # at infinity nextafter stays where it is
            y = onward
    assert ulps(x, y, dtype) == [walked]
    assert ulps(y, x, dtype) == [walked]


@pytest.mark.parametrize("dtype", FLOATS)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-12, 12))
def test_within_a_binade_it_is_the_difference_over_the_spacing(dtype, seed, exponent):
    mantissas = np.random.default_rng(seed).uniform(1, 2, size=(2, 100)).astype(dtype)
    mantissas[mantissas >= 2] = 1
    a, b = mantissas * dtype(2.0**exponent)
    spacing = np.spacing(dtype(2.0**exponent))
    expected = [round(float(step)) for step in np.abs(a - b) / spacing]
    assert ulps(a, b, dtype) == expected


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_value_stands_at_its_rank(name):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = torch.from_numpy(patterns.view(np.int16)).view(getattr(torch, name)).double().numpy()
    numbers = ~np.isnan(values)
    patterns, values = patterns[numbers], values[numbers]
    rank = np.unique(values, return_inverse=True)[1].astype(np.int64)
    shuffled = np.random.default_rng(0).permutation(len(rank))
    found = ulp_distance(patterns, patterns[shuffled], FORMATS[name].infinity)
    assert np.array_equal(found.astype(np.int64), np.abs(rank - rank[shuffled]))


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_it_is_exact_across_signs_and_binades(a, b):
    def ordinal(x):
        pattern = int(np.float32(abs(x)).view(np.uint32))
        return -pattern if x < 0 else pattern

    assert ulps(a, b, np.float32) == [abs(ordinal(a) - ordinal(b))]


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_are_one_point_and_the_smallest_values_two_apart(dtype):
    tiny = np.nextafter(dtype(0), dtype(1))
    assert ulps(-0.0, 0.0, dtype) == [0]
    assert ulps(-tiny, tiny, dtype) == [2]
    assert ulps(tiny, -0.0, dtype) == [1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinity_is_the_neighbour_of_the_largest_value(dtype):
    assert ulps(np.finfo(dtype).max, np.inf, dtype) == [1]
    infinity = FORMATS[np.dtype(dtype).name].infinity
    assert infinity == int(dtype(np.inf).view(f"u{np.dtype(dtype).itemsize}"))
    assert ulps(-np.inf, np.inf, dtype) == [2 * infinity]
    assert 2 * infinity < no_distance(np.dtype(f"u{np.dtype(dtype).itemsize}"))


def smallest_nan(dtype):
    pattern = np.array([np.inf], dtype).view(f"u{np.dtype(dtype).itemsize}") + 1
    return pattern.view(dtype)


def test_the_distances_of_float64_that_no_float_could_hold():
    assert ulps(1.0, -np.nextafter(1.0, 2.0), np.float64) == [2 * 0x3FF0_0000_0000_0000 + 1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_at_no_distance_from_numbers_and_at_none_from_nan(dtype):
    none = no_distance(FORMATS[np.dtype(dtype).name].bits)
    assert ulps([np.nan, 1, np.nan, np.inf], [np.nan, np.nan, 0, np.nan], dtype) == [0, none, none, none]
    assert ulps(smallest_nan(dtype), np.array([np.inf], dtype), dtype) == [none]
    payload = np.array([np.nan], dtype).view(f"u{np.dtype(dtype).itemsize}") + 1
    assert ulps(payload.view(dtype), -np.array([np.nan], dtype), dtype) == [0]


@pytest.mark.parametrize("name", sorted(name for name in FORMATS if not name.startswith("complex")))
def test_every_format_decodes_as_torch_does(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    dtype = getattr(torch, name)
    raw = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8))
    tensor = raw.bool() if name == "bool" else raw.view(dtype)
    expected = tensor.double().numpy() if name != "uint64" else tensor.numpy().astype(np.float64)
    form = FORMATS[name]
    found = form.decode(tensor.view(torch.uint8).numpy().view(form.bits))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)


def test_one_ulp_is_one_ulp():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        before = torch.randn(3, 4).to(dtype)
        after = before.clone()
        add_one_ulp(after, 7)
        found = hogwild.distance({"w": before}, {"w": after})
        assert (found.differing, found.max_ulp) == (1, 1)
