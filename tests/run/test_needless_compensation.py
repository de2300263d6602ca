"""Where the steps of SGD are small for the curvature, stale gradients are left as they are."""

from __future__ import annotations

from functools import partial

import problems
import pytest
import torch

import hogwild
from hogwild.optim.stability import largest_stable_step

pytestmark = pytest.mark.filterwarnings("ignore:staleness")


def train(lr, momentum=0.0, compensation="auto", **arguments):
    optimizer = partial(torch.optim.SGD, lr=lr, momentum=momentum)
    return problems.train(update="ordered", staleness=3, compensation=compensation, optimizer=optimizer, **arguments)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_small_steps_are_those_of_exact_delay_and_large_ones_are_compensated(momentum):
    λ = train(0.1, momentum).curvature
    limit = largest_stable_step(3, momentum) / λ
    small, large = 0.49 * limit, 0.51 * limit
    left = train(small, momentum)
    assert left.compensation == () and left.digest == train(small, momentum, "none").digest
    changed = train(large, momentum)
    assert changed.compensation != () and changed.digest != train(large, momentum, "none").digest
    for lr, run in ((small, left), (large, changed)):
        model = problems.mlp()
        optimizer = partial(torch.optim.SGD, lr=lr, momentum=momentum)
        problems.train_serially(model, update="ordered", staleness=3, optimizer=optimizer)
        assert hogwild.digest(model) == run.digest


def test_it_goes_on_as_it_began(tmp_path):
    whole = train(0.01, updates=40)
    with pytest.raises(KeyboardInterrupt):
        train(0.01, updates=40, out=tmp_path, evaluate=problems.interrupting(2), evaluate_every=10)
    resumed = train(0.01, updates=40, resume=tmp_path, evaluate_every=10, evaluate=lambda model: {})
    assert resumed.digest == whole.digest and resumed.compensation == ()
    optimizer = partial(torch.optim.SGD, lr=0.01)
    trained = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy, "optimizer": optimizer}
    assert hogwild.replay(tmp_path, **trained).equal
