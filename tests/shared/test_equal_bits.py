"""Two tensors have the same bits, or not: NaN and −0 included, and whatever way they lie in memory."""

from __future__ import annotations

import pytest
import torch

from hogwild.shared.hashing import digest_bytes, equal_bits

NAN, ONE = float("nan"), torch.ones(1)
SPARSE = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([2.0]), (3,), check_invariants=True)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (None, None, True),
        (ONE, None, False),
        (ONE, ONE.clone(), True),
        (torch.tensor([NAN]), torch.tensor([NAN]), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (ONE, torch.ones(()).expand(1), True),
        (torch.ones(2, 3), torch.ones(()).expand(2, 3), True),
        (torch.arange(6.0).view(2, 3).T, torch.arange(6.0).view(2, 3).T.contiguous(), True),
        (ONE, ONE.double(), False),
        (ONE, torch.ones(1, 1), False),
        (torch.ones(0), torch.ones(0), True),
        (torch.tensor([1j]).conj(), torch.tensor([-1j]), False),  # −0 in the real part of one
        (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j]), True),
        (SPARSE, SPARSE.clone(), True),
        (SPARSE, SPARSE * 2, False),
        (SPARSE, SPARSE.to_dense(), False),
    ],
)
def test_equal_bits(a, b, equal):
    assert equal_bits(a, b) is equal


def test_the_digest_of_a_single_element_that_was_expanded():
    assert digest_bytes({"a": torch.ones(()).expand(1)}) == digest_bytes({"a": ONE})
