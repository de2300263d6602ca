"""The digest against its definition, and what it must and must not depend on."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hogwild.determinism.distance import digest
from hogwild.determinism.states import entry_of
from hogwild.errors import ArgumentError

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn),
    *(torch.complex32, torch.complex64, torch.complex128),
]


def test_the_definition_byte_for_byte():
    state = {
        "b": torch.tensor([1.0, -2.0]),
        "é": torch.tensor(7),
        "a": torch.ones(1, 2, dtype=torch.bfloat16),
    }
    expected = (
        b"a\0torch.bfloat16\x00[1, 2]\0\x80\x3f\x80\x3f"
        b"b\0torch.float32\x00[2]\0\x00\x00\x80\x3f\x00\x00\x00\xc0"
        b"\xc3\xa9\0torch.int64\x00[]\0\x07\x00\x00\x00\x00\x00\x00\x00"
    )
    assert digest(state) == hashlib.sha256(expected).hexdigest()


def test_a_module_its_state_dict_and_numpy_have_one_digest():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert digest(module) == digest(module.state_dict()) == digest(arrays)
    assert digest(module) == digest(dict(reversed(module.state_dict().items())))
    before = digest(module)
    module(torch.randn(2, 3, 8, 8))  # changes the buffers of BatchNorm
    assert digest(module) != before


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (3, 4)], ids=str)
def test_every_dtype_and_shape(dtype, shape):
    count = int(np.prod(shape))
    size = torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(count).integers(0, 2, count * size, dtype=np.uint8)
    tensor = torch.from_numpy(raw.copy()).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    header = f"w\0{dtype}\0{list(shape)}\0".encode()
    assert digest({"w": tensor}) == hashlib.sha256(header + raw.tobytes()).hexdigest()


@given(st.permutations(range(3)), st.integers(1, 3), st.integers(0, 1))
def test_strides_do_not_count(order, step, offset):
    base = torch.arange(8 * 9 * 10, dtype=torch.float32).reshape(8, 9, 10)
    view = base.permute(*order)[offset::step, :, ::2]
    plain = torch.from_numpy(np.array(view.numpy(), order="C"))
    assert digest({"w": view}) == digest({"w": plain}) == digest({"w": view.numpy()})


def test_conjugate_and_negative_views_count_as_their_values():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert digest({"z": z.conj()}) == digest({"z": torch.tensor([1 - 2j, 3 + 4j])})
    assert digest({"z": z.conj().imag}) == digest({"z": torch.tensor([-2.0, 4.0])})
    assert digest({"z": torch._neg_view(torch.tensor([1.0, 2.0]))}) == digest({"z": torch.tensor([-1.0, -2.0])})


def test_every_part_counts():
    states = [
        {"w": torch.tensor([0.0, 1.0])},
        {"w": torch.tensor([-0.0, 1.0])},
        {"w": torch.tensor([1.0, 0.0])},
        {"v": torch.tensor([0.0, 1.0])},
        {"w": torch.tensor([[0.0, 1.0]])},
        {"w": torch.tensor([0.0, 1.0]).view(torch.int32)},
        {"w": torch.tensor([0.0, 1.0]), "x": torch.empty(0)},
        {"w": torch.tensor([0.0]), "x": torch.tensor([1.0])},
        {"w": torch.tensor([float("nan"), 1.0])},
        {},
    ]
    for a, b in itertools.combinations(states, 2):
        assert digest(a) != digest(b)


def test_a_contiguous_tensor_is_not_copied():
    tensor = torch.arange(12.0).view(3, 4)
    assert np.shares_memory(entry_of(tensor).data, tensor.numpy())
    assert np.shares_memory(entry_of(tensor.numpy()).data, tensor.numpy())
    assert not np.shares_memory(entry_of(tensor.t()).data, tensor.numpy())


def test_entries_that_are_no_tensors_do_not_count():
    assert digest({"w": torch.ones(1), "epoch": 3, "note": "x"}) == digest({"w": torch.ones(1)})


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"w": torch.eye(2).to_sparse()}, "'w' is a torch.sparse_coo tensor"),
        ({"w": torch.empty(2, device="meta")}, "'w' is a meta tensor"),
        ({"w": np.array(["text"])}, "'w' has the dtype <U4"),
        ({"w": np.array([{}])}, "'w' has the dtype object"),
        (nn.LazyLinear(3), "'bias' is not initialised"),
        ({"epoch": 3}, "none of its 1 entries is a tensor"),
        ({"a\0b": torch.ones(1)}, "contains a zero byte"),
        ([torch.ones(1)], "the state is a list"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "two entries have the name 'a.b'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_bytes_is_refused_by_name_in_one_line(state, named):
    with pytest.raises(ArgumentError) as caught:
        digest(state)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
