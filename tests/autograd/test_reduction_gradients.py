"""`reduction_gradients` against plain torch, and that it leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from hogwild.autograd import reduction_gradients


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def with_batch_norm():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10))


def batch(count=8):
    return torch.randn(count, 1, 6, 6), torch.randint(0, 10, (count,))


def flat_gradient(model, loss):
    return torch.cat([one.reshape(-1) for one in torch.autograd.grad(loss, list(model.parameters()))])


def test_the_four_agree_and_are_the_gradient_of_the_mean():
    model, (images, labels) = with_batch_norm(), batch()
    found = reduction_gradients(model, cross_entropy, (images, labels))
    expected = flat_gradient(model, cross_entropy(model(images), labels))
    for way in (found.none, found.sum, found.mean, found.indexed):
        torch.testing.assert_close(way, expected, atol=1e-6, rtol=0)


def test_separate_feeds_each_sample_alone():
    model, (images, labels) = with_batch_norm(), batch()
    found = reduction_gradients(model, cross_entropy, (images, labels))
    rows = [slice(i, i + 1) for i in range(len(images))]
    expected = torch.stack([flat_gradient(model, cross_entropy(model(images[i]), labels[i])) for i in rows]).mean(0)
    torch.testing.assert_close(found.separate, expected, atol=1e-6, rtol=0)
    assert found.discrepancies()["mean", "separate"] > 1e-3


def test_separate_is_the_same_in_evaluation_mode():
    found = reduction_gradients(with_batch_norm().eval(), cross_entropy, batch())
    assert found.discrepancies()["mean", "separate"] <= 1e-6


def test_discrepancies_are_largest_absolute_differences_of_all_pairs():
    found = reduction_gradients(with_batch_norm(), cross_entropy, batch())
    pairs = found.discrepancies()
    assert len(pairs) == 10
    assert pairs["sum", "separate"] == float((found.sum - found.separate).abs().max())


def test_a_weighted_mean_is_another_gradient():
    """The class weights divide `mean` and not `sum`; a checker that could not see it would be blind."""
    weights = torch.linspace(0.1, 3, 10)

    def weighted(output, target, *, reduction):
        return cross_entropy(output, target, weight=weights, reduction=reduction)

    found = reduction_gradients(with_batch_norm(), weighted, batch())
    assert found.discrepancies()["sum", "mean"] > 1e-3


def test_losses_of_more_than_one_value_per_sample():
    model = nn.Linear(4, 3)
    found = reduction_gradients(model, mse_loss, (torch.randn(5, 4), torch.randn(5, 3)))
    assert max(found.discrepancies().values()) <= 1e-6


def test_the_model_is_left_as_it_was():
    model = with_batch_norm()
    model[0].weight.grad = kept = torch.ones_like(model[0].weight)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    draws = torch.get_rng_state()
    reduction_gradients(model, cross_entropy, batch_without_draws())
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert model[0].weight.grad is kept
    assert float(kept.sum()) == kept.numel()
    assert model[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), draws)


def batch_without_draws():
    return torch.linspace(-1, 1, 4 * 36).reshape(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])


def test_a_model_that_draws_random_numbers_gives_the_same_bits_twice():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Dropout(0.5), nn.Linear(20, 10))
    first, second = (reduction_gradients(model, cross_entropy, batch_without_draws()) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.separate, second.separate)


def test_a_parameter_without_a_part_counts_as_zeros():
    model = nn.Linear(36, 10)
    model.unused = nn.Parameter(torch.ones(7))
    images, labels = batch_without_draws()
    found = reduction_gradients(model, cross_entropy, (images.flatten(1), labels))
    assert found.mean.shape == (7 + 370,)
    assert int((found.mean == 0).sum()) >= 7


@pytest.mark.parametrize(
    ("model", "images", "labels", "says"),
    [
        (nn.Flatten(), torch.ones(2, 3), torch.zeros(2).long(), "no parameter"),
        (nn.Linear(3, 2), torch.ones(0, 3), torch.zeros(0).long(), "0 inputs and 0 targets"),
        (nn.Linear(3, 2), torch.ones(2, 3), torch.zeros(3).long(), "2 inputs and 3 targets"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), torch.ones(2, 3), torch.zeros(2).long(), "not one row"),
    ],
)
def test_what_cannot_be_compared_is_refused(model, images, labels, says):
    with pytest.raises(ValueError, match=says):
        reduction_gradients(model, cross_entropy, (images, labels))
