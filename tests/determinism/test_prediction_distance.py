"""Churn, accuracy and correlation of logits against numpy, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hogwild.determinism.predictions import prediction_distance
from hogwild.errors import ArgumentError


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(2, 6))
def test_measures_equal_numpys(seed, samples, classes):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(samples, classes)).astype(np.float32)
    b = (a + rng.normal(size=a.shape)).astype(np.float32)
    targets = rng.integers(0, classes, samples)
    found = prediction_distance(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(targets))
    right_a, right_b = a.argmax(1) == targets, b.argmax(1) == targets
    error = 1 - (right_a.mean() + right_b.mean()) / 2
    assert found.samples == samples
    assert found.churn == np.mean(a.argmax(1) != b.argmax(1))
    assert (found.accuracy_a, found.accuracy_b) == (right_a.mean(), right_b.mean())
    assert found.churn_over_error == (pytest.approx(found.churn / error) if error > 1e-12 else None)
    correlation = np.corrcoef(a.ravel().astype(float), b.ravel().astype(float))[0, 1]
    assert found.logit_correlation == pytest.approx(correlation, abs=1e-12)
    assert prediction_distance(a, b, targets.tolist()) == found


def test_by_hand():
    a = [[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 3.0]]
    b = [[1.0, 2.0], [0.0, 1.0], [3.0, 0.0], [0.0, 3.0]]
    found = prediction_distance(a, b, [0, 1, 1, 1])
    assert (found.churn, found.accuracy_a, found.accuracy_b) == (0.25, 0.75, 0.5)
    assert found.churn_over_error == pytest.approx(0.25 / 0.375)
    assert found.summary().startswith("churn 25 % of 4, accuracy 0.75 and 0.5, churn ÷ error 0.667")


def test_without_targets_and_without_errors():
    a = [[2.0, 1.0], [0.0, 1.0]]
    found = prediction_distance(a, a)
    assert (found.churn, found.accuracy_a, found.churn_over_error) == (0.0, None, None)
    assert found.logit_correlation == pytest.approx(1.0)
    assert prediction_distance(a, a, [0, 1]).churn_over_error is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_every_real_dtype(dtype):
    a = torch.tensor([[2, 1], [0, 1]]).to(dtype)
    b = torch.tensor([[1, 2], [0, 1]]).to(dtype)
    found = prediction_distance(a, b, torch.tensor([0, 1], dtype=torch.uint8))
    assert (found.churn, found.accuracy_a, found.accuracy_b) == (0.5, 1.0, 0.5)


def test_a_sample_with_nan_has_no_class():
    nan = [[np.nan, 1.0], [0.0, 1.0]]
    number = [[5.0, 1.0], [0.0, 1.0]]
    found = prediction_distance(nan, number, [0, 1])
    assert (found.churn, found.accuracy_a, found.accuracy_b) == (0.5, 0.5, 1.0)
    assert found.logit_correlation is None
    assert prediction_distance(nan, nan).churn == 0.0


def test_infinite_and_constant_logits_have_no_correlation():
    infinite = [[-np.inf, 1.0], [0.0, 1.0]]
    constant = [[1.0, 1.0], [1.0, 1.0]]
    assert prediction_distance(infinite, infinite).logit_correlation is None
    assert prediction_distance(constant, [[0.0, 1.0], [2.0, 3.0]]).logit_correlation is None


@pytest.mark.parametrize("scale", [1e300, 1.7e308, 1e-300])
def test_the_correlation_of_huge_and_tiny_logits(scale):
    a = np.array([[1.0, -1.0], [0.5, 0.25]])
    b = np.array([[1.0, -0.5], [0.25, 0.25]])
    found = prediction_distance(a * scale, b * scale).logit_correlation
    assert found == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_to_dict_is_strict_json():
    found = prediction_distance([[np.inf, 1.0]], [[np.nan, 1.0]], [0]).to_dict()
    assert json.dumps(found, allow_nan=False)
    assert list(found) == [
        *("samples", "churn", "churn_over_error", "logit_correlation", "accuracy_a", "accuracy_b"),
    ]


@pytest.mark.parametrize(
    ("a", "b", "targets", "named"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]], None, "one shape"),
        ([1.0, 2.0], [1.0, 2.0], None, "(2,)"),
        ([[1.0], [2.0]], [[1.0], [2.0]], None, "(2, 1)"),
        (np.empty((0, 3)), np.empty((0, 3)), None, "(0, 3)"),
        ([[1.0, 2.0]], [[1.0, 2.0]], [0, 1], "targets of shape (2,)"),
        ([[1.0, 2.0]], [[1.0, 2.0]], [2], "0 to 1"),
        ([[1.0, 2.0]], [[1.0, 2.0]], [-1], "0 to 1"),
        ([[1.0, 2.0]], [[1.0, 2.0]], [0.5], "whole numbers"),
        ([[1j, 2.0]], [[1j, 2.0]], None, "complex128"),
        ([["a", "b"]], [["a", "b"]], None, "dtype"),
        ([[1.0, 2.0], [1.0]], [[1.0, 2.0]], None, "logits_a"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(a, b, targets, named):
    with pytest.raises(ArgumentError) as caught:
        prediction_distance(a, b, targets)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
