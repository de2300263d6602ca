"""Every special case of distance: NaN, infinities, extremes, integers, mismatches; the form of a result."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from hogwild.determinism.distance import digest, distance
from hogwild.errors import ArgumentError

NAN, INF = math.nan, math.inf


def nearly(found, expected):
    return found == pytest.approx(expected, rel=1e-11, abs=0)


def one(a, b, dtype=torch.float32):
    divergence = distance({"w": torch.tensor(a, dtype=dtype)}, {"w": torch.tensor(b, dtype=dtype)})
    return divergence.tensors[0], divergence


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("a", "b", "ulp"),
    [
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, INF], [1.0, NAN], INF),
        ([1.0, INF], [1.0, 2.0], None),
        ([1.0, 2.0], [1.0, -INF], None),
        ([1.0, INF], [1.0, -INF], None),
    ],
)
def test_what_is_not_finite_in_one_state_alone_is_infinitely_far(a, b, ulp, dtype):
    tensor, divergence = one(a, b, dtype)
    assert (tensor.relative_l2, tensor.max_abs, tensor.cosine) == (INF, INF, None)
    assert (divergence.relative_l2, divergence.max_abs, divergence.cosine) == (INF, INF, None)
    assert tensor.nonfinite == 1
    assert math.isfinite(tensor.max_ulp) if ulp is None else tensor.max_ulp == ulp
    assert not divergence.within(1e300)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_same_nan_and_infinities_leave_the_rest_measured(dtype):
    tensor, divergence = one([3.0, 4.0, NAN, INF, -INF], [3.0, 4.5, NAN, INF, -INF], dtype)
    assert tensor.relative_l2 == pytest.approx(0.1)
    assert tensor.max_abs == 0.5
    assert tensor.nonfinite == 3
    assert tensor.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert math.isfinite(tensor.max_ulp)
    assert divergence.nonfinite == 3
    assert one([NAN, INF], [NAN, INF], dtype)[1].identical
    assert one([NAN, INF], [NAN, INF], dtype)[0].nonfinite == 2
    assert not divergence.identical


def test_nan_of_another_payload_differs_in_bytes_alone():
    a = torch.tensor([0x7FC00000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    b = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    divergence = distance({"w": a}, {"w": b})
    assert not divergence.identical
    assert (divergence.differing, divergence.relative_l2, divergence.max_abs) == (1, 0.0, 0.0)
    assert divergence.max_ulp == 0
    assert divergence.worst == "w"


def test_minus_zero_differs_in_bytes_alone():
    tensor, divergence = one([0.0, 1.0], [-0.0, 1.0])
    assert not divergence.identical
    assert (tensor.differing, tensor.relative_l2, tensor.max_abs, tensor.max_ulp) == (1, 0.0, 0.0, 0)
    assert tensor.cosine == 1.0
    assert divergence.within(0)


@pytest.mark.parametrize("scale", [1e300, 1.5e308, 1e-300, 5e-324])
def test_huge_and_tiny_values_neither_overflow_nor_vanish(scale):
    a = np.array([scale, 0.0, -scale])
    tensor, _ = one(a, -a, torch.float64)
    assert nearly(tensor.relative_l2, 2.0)
    assert tensor.cosine == pytest.approx(-1)
    tensor, _ = one(a, np.array([scale, scale, -scale]), torch.float64)
    assert nearly(tensor.relative_l2, math.sqrt(0.5))
    assert tensor.max_abs == scale
    assert tensor.cosine == pytest.approx(2 / math.sqrt(6))


def test_a_huge_tensor_does_not_hide_the_others():
    a = {"big": np.full(3, 1e200), "small": np.ones(3)}
    b = {"big": np.full(3, 1e200), "small": np.full(3, 2.0)}
    divergence = distance(a, b)
    assert nearly(divergence.relative_l2, 1e-200)
    assert divergence.worst == "small"


def test_integers_are_exact_where_float64_is_not():
    a, b = np.array([2**62, 5]), np.array([2**62 + 1, 5])
    divergence = distance({"n": a}, {"n": b})
    tensor = divergence.tensors[0]
    assert (tensor.max_abs, tensor.differing, tensor.max_ulp) == (1.0, 1, None)
    assert nearly(tensor.relative_l2, 2.0**-62)
    extremes = distance({"n": np.array([-(2**63)])}, {"n": np.array([2**63 - 1])})
    assert extremes.tensors[0].max_abs == 2.0**64


def test_integers_and_bool_stay_out_of_the_overall_measures_but_are_named():
    a = {"w": torch.ones(4), "count": torch.tensor(10), "mask": torch.tensor([True, False])}
    b = {"w": torch.ones(4), "count": torch.tensor(12), "mask": torch.tensor([True, True])}
    divergence = distance(a, b)
    assert not divergence.identical
    assert (divergence.relative_l2, divergence.max_abs, divergence.max_ulp) == (0.0, 0.0, 0)
    assert divergence.changed_integers == ("count", "mask")
    assert {t.name: t.max_abs for t in divergence.tensors} == {"count": 2.0, "mask": 1.0, "w": 0.0}
    assert divergence.worst == "mask"
    assert not divergence.within(1.0)
    assert "changed integers: count, mask" in divergence.summary()
    b["w"] = b["w"] * 1.0001
    assert distance(a, b).worst == "w"


def test_worst_is_by_relative_distance():
    a = {"large": torch.full((4,), 100.0), "small": torch.full((4,), 0.1), "same": torch.ones(2)}
    b = {"large": torch.full((4,), 101.0), "small": torch.full((4,), 0.2), "same": torch.ones(2)}
    assert distance(a, b).worst == "small"
    assert distance(a, a).worst is None


def test_a_norm_of_zero():
    tensor, _ = one([0.0, 0.0], [0.0, 1.0])
    assert (tensor.relative_l2, tensor.cosine) == (INF, None)
    tensor, _ = one([0.0, 1.0], [0.0, 0.0])
    assert (tensor.relative_l2, tensor.cosine) == (1.0, None)
    tensor, _ = one([0.0], [0.0])
    assert (tensor.relative_l2, tensor.cosine) == (0.0, None)


def test_empty_and_zero_dimensional_tensors():
    a = {"empty": torch.empty(0, 3), "scalar": torch.tensor(1.0), "none": torch.empty(0, dtype=torch.int64)}
    b = {**a, "scalar": torch.tensor(1.5)}
    assert distance(a, a).identical
    divergence = distance(a, b)
    assert [t.shape for t in divergence.tensors] == [(0, 3), (0,), ()]
    assert (divergence.relative_l2, divergence.size, divergence.worst) == (0.5, 1, "scalar")
    assert distance({"e": torch.empty(0, 3)}, {"e": torch.empty(3, 0)}).reshaped[0].b == "(3, 0)"
    assert distance({}, {}).identical


def test_entries_that_do_not_match_are_named_and_the_rest_is_measured():
    a = {"w": torch.ones(2), "gone": torch.ones(1), "shape": torch.ones(2, 3), "type": torch.ones(2)}
    b = {
        "w": torch.full((2,), 1.5),
        "new": torch.ones(1),
        "shape": torch.ones(3, 2),
        "type": torch.ones(2).half(),
    }
    divergence = distance(a, b)
    assert (divergence.missing, divergence.unexpected) == (("gone",), ("new",))
    assert [entry.to_dict() for entry in divergence.reshaped] == [{"name": "shape", "a": "(2, 3)", "b": "(3, 2)"}]
    assert [entry.to_dict() for entry in divergence.retyped] == [{"name": "type", "a": "float32", "b": "float16"}]
    assert divergence.relative_l2 == 0.5
    assert divergence.summary().startswith(
        "1 of 5 tensors comparable (same name, shape and dtype): relative L2 0.5, max"
    )
    for word in ("missing: gone", "unexpected: new", "reshaped: shape", "retyped: type"):
        assert word in divergence.summary()


@pytest.mark.parametrize(
    "other",
    [{}, {"w": torch.ones(2), "x": torch.ones(1)}, {"w": torch.ones(1, 2)}, {"w": torch.ones(2).double()}],
)
def test_a_mismatch_alone_is_neither_identical_nor_within_a_limit(other):
    divergence = distance({"w": torch.ones(2)}, other)
    assert not divergence.identical
    assert divergence.relative_l2 == 0.0
    assert not divergence.within(1e9)


def test_strides_views_and_gradients_do_not_matter():
    a = torch.arange(24.0).view(4, 6)
    forms = [
        a.t().contiguous().t(),
        torch.arange(-1.0, 24.0)[1:].view(4, 6),
        nn.Parameter(a.clone()),
        torch.complex(a, -a).conj().imag,
    ]
    for form in forms:
        assert distance({"w": a}, {"w": form}).identical
        assert digest({"w": a}) == digest({"w": form})
    image = torch.randn(2, 3, 4, 5)
    assert distance({"w": image}, {"w": image.to(memory_format=torch.channels_last)}).identical
    expanded = torch.tensor([1.0, 2.0]).expand(3, 2)
    assert distance({"w": expanded}, {"w": expanded.contiguous()}).identical
    assert distance({"w": a.numpy().astype(">f4")}, {"w": a}).identical


def test_complex_values_count_as_two():
    a = {"z": torch.tensor([3 + 4j, 0j])}
    b = {"z": torch.tensor([3 + 4j, 1j])}
    divergence = distance(a, b)
    assert (divergence.size, divergence.differing, divergence.max_abs) == (4, 1, 1.0)
    assert nearly(divergence.relative_l2, 0.2)


def test_8_bit_floats_are_measured_without_ulp():
    a = torch.tensor([1.0, 2.0, 4.0])
    b = torch.tensor([1.0, 2.0, 5.0])
    divergence = distance({"w": a.to(torch.float8_e4m3fn)}, {"w": b.to(torch.float8_e4m3fn)})
    assert (divergence.max_abs, divergence.max_ulp) == (1.0, None)
    assert nearly(divergence.relative_l2, 1 / math.sqrt(21))
    assert not divergence.within(10, "max_ulp")


def test_within_knows_three_measures():
    divergence = distance({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([1.0, 1.5])})
    assert divergence.within(0.36)
    assert not divergence.within(0.35)
    assert divergence.within(0.5, "max_abs")
    assert not divergence.within(0.49, "max_abs")
    assert divergence.within(2**22, "max_ulp")
    assert not divergence.within(2**22 - 1, "max_ulp")
    for limit, measure in ((1.0, "cosine"), (-1.0, "max_abs"), (NAN, "max_abs")):
        with pytest.raises(ArgumentError):
            divergence.within(limit, measure)


def strict_json(value):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(json.dumps(value), parse_constant=refuse)


def test_to_dict_is_strict_json_with_stable_keys():
    a = {"w": torch.tensor([1.0, NAN]), "n": torch.tensor([1]), "gone": torch.ones(1), "s": torch.ones(2)}
    b = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([2]), "s": torch.ones(3), "note": "text"}
    found = strict_json(distance(a, b).to_dict())
    assert list(found) == [
        *("identical", "relative_l2", "max_abs", "max_ulp", "cosine", "size", "differing", "nonfinite"),
        *(
            "worst",
            "tensors",
            "missing",
            "unexpected",
            "reshaped",
            "retyped",
            "changed_integers",
            "unmeasured",
        ),
    ]
    assert (found["relative_l2"], found["max_abs"], found["max_ulp"]) == ("inf", "inf", "inf")
    assert found["cosine"] is None
    assert float(found["relative_l2"]) == INF
    assert found["missing"] == ["gone"]
    assert found["unmeasured"] == ["note"]
    assert found["tensors"][0] == {
        "name": "n",
        "dtype": "int64",
        "shape": [1],
        "size": 1,
        "identical": False,
        "differing": 1,
        "nonfinite": 0,
        "relative_l2": 1.0,
        "max_abs": 1.0,
        "max_ulp": None,
        "cosine": 1.0,
    }


def test_a_result_cannot_be_changed():
    divergence = distance({"w": torch.ones(1)}, {"w": torch.ones(1)})
    with pytest.raises(AttributeError):
        divergence.identical = False


def test_summaries():
    a, b = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([3.0, 4.5])}
    assert distance(a, a).summary() == "identical: 1 tensors, 2 values"
    expected = "relative L2 0.1, max |a − b| 0.5, max 1,048,576 ULP, cosine 0.99846; 1 of 2 values differ, worst w"
    assert distance(a, b).summary() == expected
    many = {f"n{i}": torch.ones(1) for i in range(5)}
    assert distance(many, {}).summary().endswith("missing: n0, n1, n2 and 2 more")
    nothing = "not comparable: no tensor in common by name, shape and dtype; reshaped: w"
    assert distance(a, {"w": torch.ones(3)}).summary() == nothing
