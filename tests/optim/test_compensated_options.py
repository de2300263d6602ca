"""What an optimizer is given in place of its own options, by its staleness and the curvature of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hogwild.optim.compensation import Compensation, real_changes
from hogwild.optim.stability import Curvature


def test_what_an_optimizer_is_given():
    named = [nn.Parameter(torch.zeros(1))]
    sgd = Compensation.of(torch.optim.SGD(named, lr=0.1, momentum=0.9), 3)
    assert sgd is not None and sgd.predicts
    assert sgd.changes == ("momentum 0.9 → 0.975 … 0.9875, from update 200 on", "lr 0.1 → 0.0125")
    adam = Compensation.of(torch.optim.Adam(named, lr=0.1, weight_decay=0.5), 3)
    assert adam is not None and not adam.predicts
    assert adam.changes == ("betas (0.9, 0.999) → (0.975, 0.999)", "lr 0.1 → 0.05")
    adamw = Compensation.of(torch.optim.AdamW(named, lr=0.1, weight_decay=0.5), 3)
    assert adamw is not None
    assert adamw.changes == (
        "betas (0.9, 0.999) → (0.975, 0.999)",
        "weight_decay 0.5 → 1",
        "lr 0.1 → 0.05",
    )
    assert Compensation.of(torch.optim.SGD(named, lr=0.1), 0) is None
    assert Compensation.of(torch.optim.SGD(named, lr=0.1, momentum=1.0), 3) is None, "which forgets nothing"


def test_what_stays_the_same_is_not_told():
    small = Curvature(2.0, 1)
    adam = Compensation.of(torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.1), 3, small)
    assert adam is not None and adam.groups[0].scale == 1
    assert adam.changes == ("betas (0.9, 0.999) → (0.975, 0.999)",)
    told = ["lr 0.01 → 0.01, for a curvature of 3", "momentum 0.95 → 0.95 … 0.99, from update 9 on", "lr 0.1 → 0.05"]
    assert real_changes(told) == tuple(told[1:])


@pytest.mark.parametrize(("momentum", "staleness"), [(0.9, 3), (0.99, 3), (0.9, 15), (0.0, 7), (0.5, 4)])
@pytest.mark.parametrize("curvature", [None, 2.0, 300.0])
@pytest.mark.parametrize("grows", [1, 3])
def test_a_constant_gradient_moves_the_weights_as_far_as_without_a_delay_in_the_end(
    momentum, staleness, curvature, grows
):
    """By η / (1 − μ); at first by as much less as the curvature asks for and what it grows to, and where nobody knows
    it, by √(τ + 1) times less where the momentum is 0.9 or more."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=momentum)
    known = None if curvature is None else Curvature(curvature, grows)
    found = Compensation.of(sgd, staleness, known)
    assert found is not None
    found.apply(sgd)
    (group,) = sgd.param_groups
    far = group["lr"] / (1 - group["momentum"])
    longer = 10 * (1 - momentum) * (staleness + 1) if momentum < 0.9 else staleness + 1
    whole, memory = 0.1 / (1 - momentum), 1 / (1 - group["momentum"])
    if curvature is None:
        assert far == pytest.approx(whole * min(1, longer**0.5 / (staleness + 1)))
    else:
        assert far == pytest.approx(min(whole, memory / (grows * curvature * (staleness + 1) ** 2)))
    remembered = []
    for update in (0, 100, 1_000, 10_000, 1_000_000_000):
        found.set_for(update, sgd)
        remembered.append(1 / (1 - group["momentum"]))
        assert remembered[-1] <= max(remembered[0], update / 5) * (1 + 1e-9)
    assert remembered == sorted(remembered)
    assert group["lr"] * remembered[-1] == pytest.approx(0.1 / (1 - momentum))


@pytest.mark.parametrize(("curvature", "slower"), [(None, 2), (2.5, 1), (5, 1), (20, 2), (45, 3), (1e9, 4)])
def test_adam_is_as_slow_as_the_curvature_asks_for_and_not_slower_than_by_the_delay(curvature, slower):
    """lr × λ × (τ + 1) is 2 at the curvature of 5."""
    adamw = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1, weight_decay=0.5)
    known = None if curvature is None else Curvature(curvature)
    found = Compensation.of(adamw, 3, known)
    assert found is not None
    found.apply(adamw)
    (group,) = adamw.param_groups
    assert group["lr"] == pytest.approx(0.1 / slower)
    assert group["lr"] * group["weight_decay"] == pytest.approx(0.1 * 0.5)
    assert group["betas"] == (pytest.approx(0.975), 0.999)
    warm = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=1e-6)
    largest = Compensation.of(warm, 3, known, [0.1])
    assert largest is not None and largest.scales == (pytest.approx(1 / slower),)


@pytest.mark.parametrize("curvature", [None, 0.1, 300.0])
def test_where_the_age_varies_sgd_is_as_slow_as_where_the_curvature_is_not_known(curvature):
    def scale(curvature, **arguments):
        sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.99)
        found = Compensation.of(sgd, 3, None if curvature is None else Curvature(curvature), **arguments)
        assert found is not None
        return found.scales[0]

    assert scale(curvature, varies=True) == min(scale(curvature), scale(None))


def test_a_rate_of_nothing_is_left_alone():
    for method in (torch.optim.SGD, torch.optim.Adam):
        parameters = [[nn.Parameter(torch.zeros(1))] for _ in range(2)]
        groups = [{"params": parameters[0], "lr": 0.0}, {"params": parameters[1], "lr": 100.0}]
        found = Compensation.of(method(groups), 3, Curvature(10.0))
        assert found is not None
        assert found.scales[1] < found.scales[0] <= 1


def test_a_rate_is_no_lower_than_the_largest_of_a_schedule_asks_for():
    """A scheduler that warms up begins with a rate that any curvature allows."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-6, momentum=0.9)
    warm = Compensation.of(sgd, 3, Curvature(10.0), [0.1])
    assert warm is not None
    assert warm.scales[0] * 0.1 * 3 * 10 * 16 == pytest.approx(1)
    assert Compensation.of(sgd, 3, Curvature(10.0)) is None


@pytest.mark.parametrize("method", [torch.optim.SGD, torch.optim.Adam])
def test_one_large_group_is_enough(method):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.01, 1.0)]
    assert Compensation.of(method(groups[:1], lr=0.1), 3, Curvature(2.0)) is None
    assert Compensation.of(method(groups, lr=0.1), 3, Curvature(2.0)) is not None
    assert Compensation.of(method(groups[:1], lr=0.1), 3, None) is not None, "nobody knows how curved"


def test_the_largest_rate_of_a_schedule_counts():
    small = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    assert Compensation.of(small, 3, Curvature(2.0), [0.01]) is None
    assert Compensation.of(small, 3, Curvature(2.0), [1.0]) is not None
