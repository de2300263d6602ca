"""`graph_summary` on graphs small enough to count by hand, and on what it must not count."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hogwild.autograd import graph_summary


def test_x_times_w_by_hand():
    w = torch.tensor([2.0], requires_grad=True)
    x = torch.tensor([1.0, 2.0])
    found = graph_summary((x * w).mean())
    assert (found.nodes, found.edges, found.absent) == (3, 2, 1)
    assert (found.saved, found.bytes, found.parameter_bytes) == (1, 8, 0)
    assert [(one.name, one.nodes, one.saved, one.bytes) for one in found.operations] == [
        ("MulBackward0", 1, 1, 8),
        ("AccumulateGrad", 1, 0, 0),
        ("MeanBackward0", 1, 0, 0),
    ]


def test_both_factors_are_saved_when_both_need_gradients():
    a, b = (torch.ones(5, requires_grad=True) for _ in range(2))
    found = graph_summary((a * b).sum())
    assert (found.nodes, found.edges, found.absent) == (4, 3, 0)
    assert (found.saved, found.bytes, found.parameter_bytes) == (2, 0, 40)


def test_a_node_reached_twice_counts_once_and_its_edges_twice():
    a = torch.ones(3, requires_grad=True)
    b = a.exp()
    found = graph_summary((b * b).sum())
    assert (found.nodes, found.edges) == (4, 4)
    assert found.saved == 3
    assert found.bytes == 12  # exp saved its result, and mul saved the same memory twice


def test_a_saved_slice_counts_what_it_spans():
    a = torch.ones(1000, requires_grad=True)
    data = torch.ones(1_000_000)
    assert graph_summary((a * data[5000:6000]).sum()).bytes == 4000


def test_overlapping_slices_count_once():
    a = torch.ones(100, requires_grad=True)
    data = torch.ones(150)
    assert graph_summary((a * data[:100]).sum() + (a * data[50:]).sum()).bytes == 600


def test_an_expanded_tensor_counts_what_is_stored():
    a = torch.ones(64, requires_grad=True)
    assert graph_summary((a * torch.ones(1).expand(64)).sum()).bytes == 4


def test_what_an_autograd_function_saved():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.save_for_backward(value * 2, value * 3)
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    a = torch.ones(10, requires_grad=True)
    row = graph_summary(Double.apply(a).sum()).operations[0]
    assert (row.name, row.saved, row.bytes) == ("DoubleBackward", 2, 80)


def test_bytes_grow_with_the_batch_and_nodes_do_not():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    small, large = (graph_summary(model(torch.ones(count, 8)).mean()) for count in (4, 40))
    assert small.nodes == large.nodes
    assert large.bytes == 10 * small.bytes
    assert small.parameter_bytes == large.parameter_bytes == 16 * 4


def test_a_frozen_layer_is_absent():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    whole = graph_summary(model(torch.ones(4, 8)).mean())
    model[0].requires_grad_(False)
    rest = graph_summary(model(torch.ones(4, 8)).mean())
    assert rest.nodes < whole.nodes
    assert "TanhBackward0" not in {one.name for one in rest.operations}


def test_a_long_chain_needs_no_recursion():
    value = torch.ones(1, requires_grad=True)
    for _ in range(20_000):
        value = value + 1
    assert graph_summary(value).nodes == 20_001


def test_it_does_not_consume_the_graph():
    a = torch.ones(3, requires_grad=True)
    loss = a.exp().sum()
    assert graph_summary(loss) == graph_summary(loss)
    loss.backward()
    assert a.grad is not None


def test_the_table_has_a_line_per_operation():
    a = torch.ones(3, requires_grad=True)
    found = graph_summary(a.exp().sum())
    lines = str(found).splitlines()
    assert len(lines) == len(found.operations) + 2
    assert lines[1].split() == ["ExpBackward0", "1", "1", "12"]


def test_no_graph_and_a_freed_graph_are_refused():
    with pytest.raises(ValueError, match="has no graph"):
        graph_summary(torch.ones(1))
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    with pytest.raises(ValueError, match="has been freed"):
        graph_summary(loss)
