"""Layouts: where each tensor lies, and that nothing overlaps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hogwild import ArgumentError
from hogwild.shared.arena import ALIGNMENT, Arena, aligned
from hogwild.shared.layout import Block, Layout

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.lists(st.tuples(shapes, st.sampled_from(DTYPES), st.integers(0, 2)), max_size=12)


def made(described: list[tuple[tuple[int, ...], torch.dtype, int]]) -> tuple[list[tuple[str, Tensor]], list[int]]:
    named = [(f"t{i}", torch.zeros(shape, dtype=dtype)) for i, (shape, dtype, _) in enumerate(described)]
    return named, [group for _, _, group in described]


@given(tensors)
def test_a_layout_overlaps_nothing_and_aligns_everything(described):
    named, groups = made(described)
    layout = Layout.of(named, groups)
    ends = 0
    for entry in sorted(layout.entries, key=lambda entry: (entry.offset, entry.numel)):
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= ends
        ends = entry.offset + entry.numel * entry.dtype.itemsize
    assert ends <= layout.nbytes == aligned(layout.nbytes)
    assert [entry.name for entry in layout.entries] == [name for name, _ in named], "entries keep the order given"


@given(tensors)
def test_a_range_is_one_group_and_one_dtype_and_ranges_cover_all(described):
    named, groups = made(described)
    layout = Layout.of(named, groups)
    assert sorted(i for span in layout.ranges for i in span.members) == list(range(len(named)))
    assert len({(span.group, span.dtype) for span in layout.ranges}) == len(layout.ranges)
    for span in layout.ranges:
        for i in span.members:
            assert (groups[i], named[i][1].dtype) == (span.group, span.dtype)
            entry = layout.entries[i]
            end = span.offset + span.numel * span.dtype.itemsize
            assert span.offset <= entry.offset <= entry.offset + entry.numel * entry.dtype.itemsize <= end


@pytest.mark.parametrize("where", ["shared", "private"])
@given(described=tensors)
def test_views_and_flat_tensors_are_the_same_memory(where, described):
    named, groups = made(described)
    layout = Layout.of(named, groups)
    block = Block.shared(Arena(layout.nbytes), 0) if where == "shared" else Block.private(layout.nbytes)
    views, flats = layout.views(block), layout.flats(block)
    for i, (view, (_, tensor)) in enumerate(zip(views, named, strict=True)):
        assert (view.shape, view.dtype, view.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
        view.fill_(i % 2)
    for span, flat in zip(layout.ranges, flats, strict=True):
        ones = sum(views[i].numel() for i in span.members if i % 2)
        assert int(flat.to(torch.complex128).sum().real) == ones, "what the views hold, and zeros between"
        assert all(views[i].data_ptr() % ALIGNMENT == 0 for i in span.members if views[i].numel())


def test_strides_are_kept():
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    transposed = torch.randn(3, 7).t()
    layout = Layout.of([("a", channels_last), ("b", transposed)])
    for view, tensor in zip(layout.views(Block.private(layout.nbytes)), (channels_last, transposed), strict=True):
        assert view.stride() == tensor.stride()
        assert torch.equal(view.copy_(tensor), tensor)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3, 1).expand(3, 4), torch.zeros(10)[::2], torch.zeros(4, 6)[:, :3]], ids=str
)
def test_tensors_that_overlap_themselves_or_leave_gaps_are_refused_by_name(tensor):
    with pytest.raises(ArgumentError, match=r"^layer\.weight has shape .* make it \.contiguous\(\)$"):
        Layout.of([("fine", torch.zeros(2)), ("layer.weight", tensor)])


def test_a_layout_of_nothing_takes_no_memory():
    assert Layout.of([]).nbytes == 0
