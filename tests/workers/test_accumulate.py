"""accumulate: one update of the mean gradient of several batches, under every rule, as the reference means it."""

from __future__ import annotations

import gc
import math
from functools import partial
from typing import Any

import problems
import pytest
import torch
from test_reference import Noisy, by_rule, listed, norms, same_bits, streamed
from torch import nn
from traits import KINDS, NAMES, SAME_BITS, VERSIONED

import hogwild
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
train = partial(problems.train, optimizer=problems.ADAM, accumulate=3)


# --- what it means


@by_rule
@pytest.mark.parametrize("model", [problems.conv_bn, norms])
def test_every_rule(setting, model):
    """In two epochs, of 13 batches."""
    same_bits(model, accumulate=3, updates=7, optimizer=problems.MOMENTUM, **setting)


@by_rule
def test_a_length_in_epochs_is_rounded_up(setting):
    """200 samples are 8 batches; 24 are 5 gradients of 5 batches, the last of 4."""
    options = {"lr_schedule": lambda number: 1 / (1 + number), "clip_grad_norm": 0.05, "batch_size": 27}
    setting = setting | {"micro_batches": 2}
    run = same_bits(problems.conv_bn, epochs=3, accumulate=5, optimizer=problems.ADAM, **options, **setting)
    assert run.updates == (3 if setting["update"] == "sync" else 5)
    assert run.samples == 600
    limited = problems.train(epochs=3, accumulate=5, limit_updates=1, **setting | {"workers": 1})
    assert limited.updates == 1 and limited.samples == 16 * 5 * (2 if setting["update"] == "sync" else 1)


@by_rule
def test_each_batch_draws_what_it_would_by_itself(setting):
    same_bits(problems.dropout, kind="processes", data=Noisy(), epochs=4, accumulate=3, **setting)


def uneven(model, batch):
    """As many losses as a batch has eights of samples."""
    for x, y in zip(*(part.split(8) for part in batch), strict=True):
        yield problems.cross_entropy(model, (x, y))


@pytest.mark.parametrize("gradient", ["grad", "backward"])
@pytest.mark.parametrize("update", [name for name in NAMES if name != "racing"])
def test_a_batch_counts_as_much_as_another_however_many_losses_it_yields(update, gradient):
    """The last of an epoch yields one, and the others two."""
    settings = {"update": update, "staleness": 0, "micro_batches": 1, "accumulate": 3, "epochs": 2, "workers": 1}
    settings |= {"data": problems.data(40), "optimizer": problems.SGD, "kind": "threads", "gradient": gradient}
    model, (x, y), order = problems.mlp(), problems.data(40), hogwild.Schedule(40, 16)
    step = problems.SGD(model.parameters())
    for update_number in range(2):
        step.zero_grad()
        for number in range(3 * update_number, 3 * update_number + 3):
            rows = order.indices(number)
            parts = [*uneven(model, (x[rows], y[rows]))]
            (torch.stack(parts).mean() / 3).backward()
        step.step()
    trained = problems.mlp()
    problems.train(trained, loss=uneven, **settings)
    torch.testing.assert_close(dict(trained.named_parameters()), dict(model.named_parameters()))


@by_rule
def test_uneven_batches_are_those_of_the_reference(setting):
    same_bits(problems.mlp, loss=uneven, accumulate=3, epochs=2, optimizer=problems.ADAM, **setting)


def test_without_buffers_it_is_sync_by_one_worker():
    settings = {"optimizer": problems.ADAM, "updates": 20, "kind": "processes", "workers": 1}
    one = problems.train(problems.dropout(), update="sync", micro_batches=3, **settings)
    other = problems.train(problems.dropout(), update="ordered", staleness=0, accumulate=3, **settings)
    assert one.digest == other.digest
    assert one.journal["loss"].tolist() == other.journal["loss"].tolist()


def test_it_is_the_loop_that_everybody_writes():
    """BatchNorm sees each batch by itself, one after the other."""
    (x, y), model, order = problems.data(), problems.conv_bn(), hogwild.Schedule(200, 16)
    stepper = problems.MOMENTUM(model.parameters())
    for first in range(0, 60, 3):
        stepper.zero_grad()
        for number in range(first, first + 3):
            rows = order.indices(number)
            problems.cross_entropy(model, (x[rows], y[rows])).backward()
        for parameter in model.parameters():
            parameter.grad /= 3
        stepper.step()
    ours = problems.train(
        problems.conv_bn(), update="hogwild", workers=1, accumulate=3, updates=20, optimizer=problems.MOMENTUM
    )
    assert ours.digest == hogwild.digest(model)


@pytest.mark.parametrize("loss", [listed, streamed])
@pytest.mark.parametrize("update", NAMES)
def test_losses_in_parts(update, loss):
    same_bits(problems.conv_bn, loss=loss, update=update, accumulate=3, updates=7)


# --- whoever computes it


@pytest.mark.parametrize("update", SAME_BITS)
def test_any_number_of_workers(update):
    settings = {"update": update, "staleness": 3, "micro_batches": 4, "updates": 12, "recheck": 0.2}
    digests = set()
    for workers, kind in [(1, "threads"), (2, "processes"), (4, "threads"), (4, "processes")]:
        with planted(RandomDelays(seed=workers)):
            run = train(problems.conv_bn(), workers=workers, kind=kind, **settings)
        assert run.updates == 12 and run.rechecked > 0
        digests.add(run.digest)
    assert len(digests) == 1


KILLED = {"staleness": 3, "micro_batches": 2, "updates": 12}


@pytest.fixture(scope="module")
def undisturbed():
    return {
        name: train(problems.conv_bn(), update=name, workers=1, kind="threads", **KILLED).digest for name in SAME_BITS
    }


@pytest.mark.parametrize("hook", [Hook.COMPUTING, Hook.COMMITTING, Hook.WRITING])
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_kill(update, hook, undisturbed):
    fault = PlantedFault(Fault.KILL, hook, 8)
    with planted(fault):
        run = train(problems.conv_bn(), update=update, kind="processes", **KILLED)
    assert fault.fired and len(run.failures) == 1
    assert run.digest == undisturbed[update]


@pytest.mark.parametrize("update", VERSIONED)
def test_it_is_resumed_and_replayed(update, tmp_path):
    def evaluate(model):
        evaluate.calls += 1
        if evaluate.calls == 2:
            raise KeyboardInterrupt
        return {}

    evaluate.calls, stopped, ended = 0, tmp_path / "stopped", tmp_path / "ended"
    settings = {"update": update, "epochs": 5, "optimizer": problems.SGD}
    whole = train(problems.conv_bn(), workers=2, **settings)
    with pytest.raises(KeyboardInterrupt):
        train(problems.conv_bn(), out=stopped, evaluate=evaluate, evaluate_every=4, **settings)
    with pytest.raises(hogwild.ArgumentError, match=r"accumulate is 2, and .* was made with 3"):
        train(problems.conv_bn(), resume=stopped, **settings, accumulate=2)
    run = train(problems.conv_bn(), resume=stopped, out=ended, **settings)
    if update in SAME_BITS:
        assert run.digest == whole.digest
    replayed = hogwild.replay(
        ended,
        model=problems.conv_bn(),
        data=problems.data(),
        loss=problems.cross_entropy,
        optimizer=problems.SGD,
    )
    assert replayed.equal, str(replayed)


@pytest.mark.parametrize("setting", [{"update": "hogwild", "accumulate": 3}, {"update": "sync", "accumulate": 1}])
def test_a_run_whose_last_update_has_fewer_batches_is_made_no_longer(setting, tmp_path):
    """13 batches are 4 updates of 3, and one."""
    settings = {"staleness": 0, "micro_batches": 3, "workers": 1, "epochs": 1} | setting
    assert problems.train(out=tmp_path, checkpoint_every=1, **settings).updates == 5
    with pytest.raises(hogwild.ArgumentError, match="epochs given, and the last update of the run in .* has fewer"):
        problems.train(resume=tmp_path, change={"epochs": 2}, **settings)


# --- what goes wrong


@pytest.mark.parametrize("update", NAMES)
def test_the_batch_that_holds_nan_is_named(update):
    """Of the three of an update it is the second."""
    x, y = problems.data()
    x[hogwild.Schedule(200, 16).indices(7)[0], 3] = math.nan
    with pytest.raises(hogwild.NonFiniteError, match="data: batch 7 holds NaN.*at update 2 .batch 6") as caught:
        train(update=update, data=(x, y), staleness=0, micro_batches=1, workers=1)
    assert (caught.value.update, caught.value.batch) == (2, 6)


@pytest.mark.parametrize("update", NAMES)
def test_a_loss_that_is_not_finite_is_left_out_whole(update):
    """Under `racing` the shared gradient, too, does not learn of it."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        info = hogwild.worker_info()
        return problems.cross_entropy(model, batch) * (math.nan if info.update == 2 and info.batch == 7 else 1.0)

    options = {"update": update, "staleness": 0, "micro_batches": 1, "workers": 1, "updates": 10}
    run = train(loss=loss, on_nonfinite="skip", **options)
    assert all(bool(value.isfinite().all()) for value in run.state.values())
    assert sum(usage.skipped for usage in run.workers) == 1


def test_what_is_logged_names_its_batch():
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        info = hogwild.worker_info()
        info.log(number=info.batch)
        return problems.cross_entropy(model, batch)

    run = train(loss=loss, update="ordered", kind="processes", updates=5)
    assert [(row["update"], row["batch"], row["number"]) for row in run.logged] == [(b // 3, b, b) for b in range(15)]


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_logged_of_an_update_that_is_computed_again_counts_once(update, kind):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        hogwild.worker_info().log(number=1)
        return problems.cross_entropy(model, batch)

    fault = PlantedFault(Fault.RAISE, Hook.COMMITTING, 5)
    with planted(fault):
        run = train(loss=loss, update=update, kind=kind, updates=6, workers=2)
    assert fault.fired
    assert [row["batch"] for row in run.logged] == [*range(36 if update == "sync" else 18)]


def test_one_gradient_more_is_held():
    """When a batch begins, the sum of those before is all there is. What a training has made is of the youngest
    generation of the collector, which is off: so not all there is in this program has to be looked at."""
    held = []

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 1237))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = [t for t in gc.get_objects(generation=0) if type(t) is torch.Tensor and t.shape == (3, 1237)]
            held.append(len([t for t in found if t.data_ptr() != self.weight.data_ptr()]))
            return x @ self.weight[:, :8].T

    settings = {"update": "ordered", "staleness": 0, "workers": 1, "optimizer": problems.SGD, "recheck": 0}
    gc.collect()
    gc.disable()
    try:
        problems.train(Wide(), accumulate=4, updates=5, **settings)
    finally:
        gc.enable()
    begun, last = held[-4], held[-1]
    assert last == begun + 1, "one more than where the update began"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"update": "ordered", "accumulate": 1000}, "accumulate 1000: an update averages 1,000 batches"),
        (
            {"update": "sync", "accumulate": 30, "micro_batches": 4},
            "accumulate 30, micro_batches 4: an update averages",
        ),
    ],
)
def test_a_run_of_fewer_batches_than_an_update_averages_says_so(settings, told):
    with pytest.warns(UserWarning, match=f"{told}.*so it makes one update"):
        run = problems.train(epochs=1, kind="threads", recheck=0, **settings)
    assert run.updates == 1
