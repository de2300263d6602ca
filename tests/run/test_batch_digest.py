"""The digest of a batch: the same for the same values, another for others, and never an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hogwild.run.batch_digest import batch_digest

X = torch.arange(6.0).reshape(2, 3)
BATCHES = {
    "a tensor": X,
    "another shape": X.reshape(3, 2),
    "another type": X.double(),
    "other values": X + 1,
    "a tuple": (X, X),
    "a longer one": (X, X, X),
    "by name": {"x": X},
    "by another name": {"y": X},
    "a number": 3,
    "another number": 3.0,
    "a word": "three",
    "an object": object(),
    "nested": {"x": (X, {"y": 1})},
}


def test_what_differs_has_another_digest():
    found = [batch_digest(batch) for batch in BATCHES.values()]
    assert len(set(found)) == len(BATCHES) and all(len(digest) == 64 for digest in found)
    assert found == [batch_digest(batch) for batch in BATCHES.values()]
    assert batch_digest(X.numpy()) == batch_digest(X) == batch_digest(X.t().contiguous().t())


def circular():
    batch = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize("batch", [np.ones(2, np.longdouble), circular()], ids=["long doubles", "a circle"])
def test_what_cannot_be_hashed_is_no_error(batch):
    assert batch_digest(batch) == ""


def test_arrays_of_objects_and_lazy_conjugates_are_no_error():
    batch_digest(np.array([object()], dtype=object))
    batch_digest(torch.ones(2, dtype=torch.complex64).conj())
