"""The digest of a batch: the same for the same values, another for others, and never an error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import problems
import pytest
import torch

import hogwild
from hogwild.run.trial.batch_digest import batch_digest


@dataclass
class Sample:
    x: torch.Tensor
    text: str = ""


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


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
    "a dataclass": Sample(X),
    "one with other values": Sample(X + 1),
    "one with other words": Sample(X, "other"),
    "an object with slots": Slotted(X),
    "one that holds another": Slotted(Sample(X)),
    "a function": len,
    "sparse": X.to_sparse(),
    "sparse with other values": (X + 1).to_sparse(),
    "words": np.array(["a", "b"]),
    "other words": np.array(["a", "c"]),
    "a set": {"a", "b", "c"},
    "keys that are pairs": {(1, 2): X},
    "other pairs": {(1, 3): X},
    "one number of numpy": np.float32(3),
    "another of numpy": np.float32(4),
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


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_compressed_rows_are_known_by_their_values():
    assert batch_digest(X.to_sparse_csr()) != batch_digest((X + 1).to_sparse_csr())


def collated(samples, shift=0.0):
    return Sample(torch.stack([x for x, _ in samples]) + shift, "a batch")


def test_a_resumed_run_knows_a_batch_that_is_an_object(tmp_path):
    def trained(out, collate, updates=40, **arguments):
        dataset = torch.utils.data.TensorDataset(*problems.data())
        return problems.train(data=dataset, loss=size, collate=collate, out=out, updates=updates, **arguments)

    trained(tmp_path / "a", collated, update="ordered", checkpoint_every=10)
    other = partial(collated, shift=1.0)
    go_on = {"update": "ordered", "resume": tmp_path / "a", "change": {"updates": 50}}
    with pytest.raises(hogwild.ArgumentError, match="data, its first batch, is"):
        trained(tmp_path / "b", other, **go_on)
    assert trained(tmp_path / "b", collated, **go_on).updates == 50


def size(model, batch):
    return model(batch.x).square().mean()
