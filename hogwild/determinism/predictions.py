"""How far the predictions of two classifiers are apart on one evaluation set.

Shapes: `N` samples, `C` classes.

Churn, the share of samples whose predicted class differs, is the prediction churn of Zhuang et al. 2021
(arXiv 2106.11872) and the pairwise disagreement of Summers & Dinneen 2021 (arXiv 2103.04514), who also
correlate the logits. Churn is set against the error rate because for independently trained networks the two
are expected to be equal (Jordan 2024, arXiv 2304.01910): a ratio near 1 is the divergence of unrelated runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hogwild.determinism.states import entry_of
from hogwild.errors import ArgumentError

Values: TypeAlias = torch.Tensor | NDArray[Any] | Sequence[Any]


@dataclass(frozen=True)
class PredictionDivergence:
    """How far the predictions of two classifiers are apart.

    Attributes:
        samples: N.
        churn: share of samples whose predicted class differs, in [0, 1].
        churn_over_error: churn ÷ mean error rate of the two; None without targets or where neither errs.
        logit_correlation: Pearson correlation of all N × C logits; None where one side is constant or not
            finite.
        accuracy_a, accuracy_b: share of samples predicted right, in [0, 1]; None without targets.
    """

    samples: int
    churn: float
    churn_over_error: float | None
    logit_correlation: float | None
    accuracy_a: float | None
    accuracy_b: float | None

    def to_dict(self) -> dict[str, int | float | None]:
        """The same as JSON values; every number is finite."""
        return {**vars(self)}

    def summary(self) -> str:
        """One line for a person."""
        parts = [f"churn {100 * self.churn:.3g} % of {self.samples:,}"]
        if self.accuracy_a is not None and self.accuracy_b is not None:
            parts.append(f"accuracy {self.accuracy_a:.4g} and {self.accuracy_b:.4g}")
        if self.churn_over_error is not None:
            parts.append(f"churn ÷ error {self.churn_over_error:.3g}")
        if self.logit_correlation is not None:
            parts.append(f"logit correlation {self.logit_correlation:.6g}")
        return ", ".join(parts)


def prediction_distance(logits_a: Values, logits_b: Values, targets: Values | None = None) -> PredictionDivergence:
    """Measure how far two classifiers' predictions on the same samples are apart.

    The predicted class is that of the largest logit, the first of equal ones. A sample with a NaN among its
    logits has no predicted class: it counts as wrong, as churn against a predicted class, and as agreement
    with another such sample.

    Args:
        logits_a: `(N, C)` of any real dtype, N ≥ 1 and C ≥ 2; scores or probabilities serve as well.
        logits_b: the same for the other classifier.
        targets: `(N,)`, integers in [0, C): the true classes.

    Raises:
        ArgumentError: a shape, dtype or class that does not fit.
    """
    a, b = _logits("logits_a", logits_a), _logits("logits_b", logits_b)
    if a.shape != b.shape:
        raise ArgumentError(f"logits_a of shape {a.shape} and logits_b of shape {b.shape} must have one shape")
    classes_a, classes_b = _classes(a), _classes(b)
    churn = float(np.mean(classes_a != classes_b))
    accuracy_a = accuracy_b = churn_over_error = None
    if targets is not None:
        truth = _targets(targets, *a.shape)
        accuracy_a, accuracy_b = float(np.mean(classes_a == truth)), float(np.mean(classes_b == truth))
        wrong = int(np.count_nonzero(classes_a != truth)) + int(np.count_nonzero(classes_b != truth))
        churn_over_error = churn / (wrong / (2 * len(truth))) if wrong else None
    return PredictionDivergence(
        samples=len(a),
        churn=churn,
        churn_over_error=churn_over_error,
        logit_correlation=_pearson(a.ravel(), b.ravel()),
        accuracy_a=accuracy_a,
        accuracy_b=accuracy_b,
    )


def _logits(name: str, values: Values) -> NDArray[np.float64]:
    array = _array(name, values)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        raise ArgumentError(f"{name} of shape {array.shape} must be (samples, classes), 1 sample and 2 classes or more")
    return array


def _targets(values: Values, samples: int, classes: int) -> NDArray[np.float64]:
    truth = _array("targets", values)
    if truth.shape != (samples,):
        raise ArgumentError(f"targets of shape {truth.shape} must have shape ({samples},), one for each sample")
    if not np.all((truth >= 0) & (truth < classes) & (truth == np.floor(truth))):
        raise ArgumentError(f"targets must be whole numbers from 0 to {classes - 1}, the classes that the logits have")
    return truth


def _array(name: str, values: Values) -> NDArray[np.float64]:
    given: torch.Tensor | ArrayLike = values
    try:
        entry = entry_of(given if isinstance(given, torch.Tensor) else np.asarray(given))
    except (ArgumentError, ValueError) as error:
        raise ArgumentError(f"{name} {error}") from None
    if entry.dtype.startswith("complex"):
        raise ArgumentError(f"{name} has the dtype {entry.dtype}; it must be real")
    return entry.format.decode(entry.bits).reshape(entry.shape)


def _classes(logits: NDArray[np.float64]) -> NDArray[np.intp]:
    """The predicted class of each sample `(N,)`, −1 where a logit is NaN."""
    return np.where(np.isnan(logits).any(axis=1), -1, logits.argmax(axis=1))


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    centred_x, centred_y = _centred(x), _centred(y)
    if centred_x is None or centred_y is None:
        return None
    cosine = (centred_x * centred_y).sum() / np.sqrt((centred_x**2).sum() * (centred_y**2).sum())
    return float(np.clip(cosine, -1.0, 1.0))


def _centred(x: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """`x` minus its mean, scaled to a largest value of 1, so that squares are safe; None if constant."""
    if x.max() == x.min():
        return None
    exponent = np.frexp(np.abs(x).max())[1]
    centred = np.ldexp(x, -exponent)
    centred -= centred.mean()
    scaled: NDArray[np.float64] = centred / np.abs(centred).max()
    return scaled
