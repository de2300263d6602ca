"""Where steps are small for the curvature, stale gradients are left as they are; and rows of which a batch has few do
not make a loss seem curved to Adam."""

from __future__ import annotations

import traceback
from functools import partial

import problems
import pytest
import torch
from torch import Tensor, nn

import hogwild
from hogwild.optim.stability import largest_stable_step
from hogwild.run.trial import curvature

pytestmark = pytest.mark.filterwarnings("ignore:staleness")


def train(optimizer, compensation="auto", **arguments):
    return problems.train(update="ordered", staleness=3, compensation=compensation, optimizer=optimizer, **arguments)


def largest_small_step(optimizer, curvature):
    """The largest learning rate that is left as it is."""
    if optimizer.func is torch.optim.Adam:
        return 0.2 / curvature / 4
    return largest_stable_step(3, optimizer.keywords["momentum"]) / 2 / curvature


@pytest.mark.parametrize(
    "optimizer",
    [partial(torch.optim.SGD, momentum=0.0), partial(torch.optim.SGD, momentum=0.9), partial(torch.optim.Adam)],
    ids=["SGD", "momentum", "Adam"],
)
def test_small_steps_are_those_of_exact_delay_and_large_ones_are_compensated(optimizer):
    limit = largest_small_step(optimizer, train(partial(optimizer, lr=0.1)).curvature)
    small, large = partial(optimizer, lr=0.98 * limit), partial(optimizer, lr=1.02 * limit)
    left, changed = train(small), train(large)
    assert left.compensation == () and left.digest == train(small, "none").digest
    assert changed.compensation != () and changed.digest != train(large, "none").digest
    for own, run in ((small, left), (large, changed)):
        model = problems.mlp()
        problems.train_serially(model, update="ordered", staleness=3, optimizer=own)
        assert hogwild.digest(model) == run.digest


@pytest.mark.parametrize("updates", [20, 500], ids=["short", "long"])  # of which the curvature is measured
@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=1.0, momentum=torch.tensor(0.9)),
        partial(torch.optim.SGD, lr=torch.tensor(1.0), momentum=torch.tensor(0.9), nesterov=True),
        partial(torch.optim.Adam, lr=torch.tensor(1.0)),
    ],
    ids=["momentum", "nesterov", "Adam"],
)
def test_what_has_tensors_as_options_is_left_as_it_is_and_no_cure_is_told(optimizer, updates):
    arguments = {"updates": updates, "on_nonfinite": "ignore"}
    with pytest.warns(UserWarning, match=f"staleness 3 with {optimizer.func.__name__}") as told:
        runs = [train(optimizer, compensation, **arguments) for compensation in ("auto", "none")]
    assert not [one for one in told if "compensation" in str(one.message)]
    assert runs[0].compensation == () and runs[0].digest == runs[1].digest
    if updates == 20:
        model, settings = problems.mlp(), {"update": "ordered", "staleness": 3, "compensation": "none"}
        problems.train_serially(model, optimizer=optimizer, updates=updates, **settings)
        assert hogwild.digest(model) == runs[0].digest


def test_it_goes_on_as_it_began(tmp_path):
    small = partial(torch.optim.SGD, lr=0.01)
    whole = train(small, updates=40)
    with pytest.raises(KeyboardInterrupt):
        train(small, updates=40, out=tmp_path, evaluate=problems.interrupting(2), evaluate_every=10)
    resumed = train(small, updates=40, resume=tmp_path, evaluate_every=10, evaluate=lambda model: {})
    assert resumed.digest == whole.digest and resumed.compensation == ()
    trained = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy, "optimizer": small}
    assert hogwild.replay(tmp_path, **trained).equal


class Factors(nn.Module):
    """Of a matrix of 300 rows and 200 columns; a batch of pairs has few of either."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(300, 8), nn.Embedding(200, 8)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.rows(pairs[:, 0]) * self.columns(pairs[:, 1])).sum(1)


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("seed", range(3))
def test_adam_is_not_slowed_by_rows_of_which_a_batch_has_few(seed):
    def curved(batch_size):
        drawn = torch.Generator().manual_seed(seed)
        pairs = torch.stack([torch.randint(0, size, (16_000,), generator=drawn) for size in (300, 200)], 1)
        data = pairs, torch.randn(16_000, generator=drawn)
        torch.manual_seed(seed)
        run = problems.train(
            Factors(),
            data=data,
            loss=squared,
            batch_size=batch_size,
            updates=5,
            optimizer=problems.ADAM,
            update="ordered",
            staleness=3,
        )
        return run.curvature

    assert curved(64) < 10 * curved(1024)  # of which each row has several samples; 35 to 92 times without the one more


def test_a_schedule_is_judged_by_its_largest_factor():
    """As LambdaLR, which is a table of rates; and not by a rate that is never taken."""
    hundredth, warming = (lambda u: 0.01), (lambda u: min(1.0, (u + 1) / 30))
    small, large = partial(torch.optim.SGD, lr=1.0), partial(torch.optim.SGD, lr=0.5)
    assert train(small, lr_schedule=hundredth).compensation == ()
    assert train(partial(torch.optim.SGD, lr=0.01)).compensation == ()
    told = train(large, lr_schedule=warming).compensation
    by_table = train(large, lr_schedule=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=warming)).compensation
    assert told == by_table != ()


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_cannot_be_read_once_while_the_curvature_is_measured_changes_no_bit(batch):
    failed = []

    def loss(model, data):
        measured = any(frame.filename == curvature.__file__ for frame in traceback.extract_stack())
        if measured and hogwild.worker_info().batch == batch and not failed:
            failed.append(batch)
            raise OSError("this file cannot be read now")
        return problems.cross_entropy(model, data)

    optimizer = partial(torch.optim.SGD, lr=0.5, momentum=0.9)
    undisturbed, disturbed = train(optimizer), train(optimizer, loss=loss, kind="threads")
    assert failed
    assert disturbed.curvature == undisturbed.curvature is not None
    assert disturbed.digest == undisturbed.digest
