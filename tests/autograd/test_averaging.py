"""Averages of losses against plain torch, and what is alive, touched and refused along the way."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from hogwild.autograd import accumulate_average, average_gradients, mean_loss


class Marker:
    """Something a weak reference can watch; a node's metadata keeps it as long as the node lives."""


@pytest.fixture
def weight():
    return nn.Parameter(torch.tensor([1.0, 2.0]))


def losses_of(weight, count=3):
    for factor in range(1, count + 1):
        yield (weight * factor).exp().sum()


def reference(weight, count=3):
    loss = torch.stack(list(losses_of(weight, count))).mean()
    return loss.detach(), torch.autograd.grad(loss, weight)[0]


@pytest.mark.parametrize("form", [list, tuple, iter], ids=["list", "tuple", "generator"])
def test_average_gradients_is_the_gradient_of_the_mean(weight, form):
    found = average_gradients(form(losses_of(weight)), [weight])
    loss, gradient = reference(weight)
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.gradients[0], gradient)
    assert found.count == 3
    assert not found.loss.requires_grad
    assert weight.grad is None


def test_a_scalar_is_its_own_average(weight):
    found = average_gradients(next(losses_of(weight)), [weight])
    torch.testing.assert_close(found.gradients[0], reference(weight, 1)[1])
    assert found.count == 1


@pytest.mark.parametrize("form", [list, iter], ids=["list", "generator"])
def test_a_parameter_that_no_loss_reaches_has_none(weight, form):
    idle = nn.Parameter(torch.ones(3))
    assert average_gradients(form(losses_of(weight)), [idle, weight]).gradients[0] is None
    accumulate_average(form(losses_of(weight)), [idle, weight])
    assert idle.grad is None


def test_a_parameter_reached_by_one_loss_of_three_gets_a_third(weight):
    other = nn.Parameter(torch.ones(1))

    def losses():
        yield weight.sum()
        yield weight.sum() + 6 * other.sum()
        yield weight.sum()

    assert average_gradients(losses(), [other]).gradients[0].item() == 2.0


@pytest.mark.parametrize("form", [list, iter], ids=["list", "generator"])
def test_accumulate_average_adds_into_the_grad_that_is_there(weight, form):
    weight.grad = kept = torch.tensor([10.0, 20.0])
    loss = accumulate_average(form(losses_of(weight)), [weight])
    expected_loss, gradient = reference(weight)
    assert weight.grad is kept
    torch.testing.assert_close(kept, torch.tensor([10.0, 20.0]) + gradient)
    torch.testing.assert_close(loss, expected_loss)


def test_accumulate_average_leaves_other_leaves_alone(weight):
    other = nn.Parameter(torch.ones(2))
    accumulate_average([(weight * other).sum()], [weight])
    assert other.grad is None


def test_a_tied_parameter_is_averaged_once(weight):
    accumulate_average(losses_of(weight), [weight, weight])
    torch.testing.assert_close(weight.grad, reference(weight)[1])


@pytest.mark.parametrize("average", [average_gradients, accumulate_average])
def test_a_generators_graph_is_gone_before_the_next_is_built(weight, average):
    alive_before_each = []
    markers = []

    def losses():
        for factor in range(1, 5):
            alive_before_each.append(sum(one() is not None for one in markers))
            inner = (weight * factor).exp()
            marker = Marker()
            inner.grad_fn.metadata["marker"] = marker
            markers.append(weakref.ref(marker))
            del marker
            loss = inner.sum()
            del inner
            yield loss
            del loss

    average(losses(), [weight])
    assert alive_before_each == [0, 0, 0, 0]


def test_a_list_keeps_every_graph(weight):
    """The control of the test above: its instrument sees graphs that are alive."""
    losses = list(losses_of(weight))
    markers = []
    for loss in losses:
        marker = Marker()
        loss.grad_fn.metadata["marker"] = marker
        markers.append(weakref.ref(marker))
        del marker, loss
    assert all(one() is not None for one in markers)


@pytest.mark.parametrize("average", [average_gradients, accumulate_average])
@pytest.mark.parametrize(
    ("losses", "error", "says"),
    [
        ([], ValueError, "the list is empty"),
        (iter([]), ValueError, "yielded nothing"),
        ([torch.ones(2)], ValueError, r"loss 0 has shape \(2,\)"),
        (torch.ones(3), ValueError, r"loss 0 has shape \(3,\)"),
        ([1.0], TypeError, "loss 0 is a float"),
    ],
    ids=["no list", "no yield", "vector in list", "vector", "float"],
)
def test_what_is_no_loss_is_refused(weight, average, losses, error, says):
    with pytest.raises(error, match=says):
        average(losses, [weight])


@pytest.mark.parametrize("average", [average_gradients, accumulate_average])
def test_the_second_of_a_generator_is_named_when_it_is_no_scalar(weight, average):
    with pytest.raises(ValueError, match="loss 1 has shape"):
        average((one for one in (weight.sum(), weight * 2)), [weight])


@pytest.mark.parametrize("average", [average_gradients, accumulate_average])
def test_graphs_in_common_are_explained_and_grad_is_put_back(weight, average):
    weight.grad = kept = torch.tensor([7.0, 7.0])

    def losses():
        inner = weight.exp()
        yield inner.sum()
        yield inner.mean()

    with pytest.raises(ValueError, match="loss 1 of the generator has a graph in common"):
        average(losses(), [weight])
    assert weight.grad is kept
    assert kept.tolist() == [7.0, 7.0]


def test_mean_loss_keeps_the_graphs(weight):
    loss = mean_loss(list(losses_of(weight)))
    assert loss.shape == ()
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], reference(weight)[1])
