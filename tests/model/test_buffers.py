"""Buffers are private to a replica and committed by their rule."""

from __future__ import annotations

import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slots import Slot
from torch import Tensor, nn
from traits import KINDS, OWN_GRADIENTS, SAME_BITS

import hogwild
from hogwild import ArgumentError
from hogwild.model.buffers import BufferRule


class Reassigned(nn.Module):
    """Gives its buffer a new tensor in every forward pass, and counts passes in an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(8))
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("left", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean(0)
        self.passes += 2
        self.flag = ~self.flag
        return self.layer(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", OWN_GRADIENTS)
def test_other_buffers(update, kind):
    model = Reassigned()
    problems.train(model, update=update, kind=kind, workers=2 if update in SAME_BITS else 1, updates=5)
    x, _ = problems.data()
    batches = 10 if update == "sync" else 5
    last = hogwild.Schedule(len(x), 16).indices(batches - 1)
    assert torch.equal(model.seen, x[last].mean(0)), "the value that the last forward pass left"
    assert model.passes == 2 * batches, "integers count"
    assert torch.equal(model.left, torch.arange(4.0))
    assert model.flag, "any other keeps what the last forward pass left, which under sync starts from the version"


class SharedBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)
        self.first.register_buffer("count", torch.tensor(0))
        self.second.register_buffer("count", self.first.count)

    def forward(self, x: Tensor) -> Tensor:
        self.first.count += 1
        assert self.second.count is self.first.count
        return self.second(self.first(x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_of_two_modules_stays_one(kind):
    model = SharedBuffer()
    run = problems.train(model, update="ordered", kind=kind, updates=5)
    assert model.second.count is model.first.count
    assert model.first.count == 5
    assert run.state["first.count"] == run.state["second.count"] == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_that_changes_its_form_is_refused_by_name(kind):
    class Grows(Reassigned):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen, torch.ones(1)])
            return self.layer(x)

    with pytest.raises(ArgumentError, match=r"changed buffer seen from torch.float32 \[8\] to torch.float32 \[9\]"):
        problems.train(Grows(), kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_the_first_batch_shapes_is_trained_once_one_was_run_through_the_model(kind):
    class Ranges(Reassigned):
        """As the observers of quantisation-aware training keep them."""

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x.detach().amax(0) if len(self.seen) != x.shape[1] else torch.maximum(self.seen, x.amax(0))
            return self.layer(x - self.seen)

    model = Ranges()
    model.seen = torch.zeros(0)
    with pytest.raises(ArgumentError, match=r"seen from torch.float32 \[0\] .* run one through the model first"):
        problems.train(model, kind=kind)
    model(problems.data()[0][:4])
    assert problems.train(model, kind=kind, update="ordered", updates=5).updates == 5


# --- running statistics


def in_training(*models: nn.Module) -> None:
    for model in models:
        model.train()


class Average:
    """What a serial run of BatchNorm keeps of a stream of batches, worked out without it."""

    def __init__(self, momentum: float | None) -> None:
        self.momentum = momentum
        self.mean, self.var, self.count = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64), 0

    def add(self, batch: Tensor) -> None:
        self.count += 1
        weight = 1 / self.count if self.momentum is None else self.momentum
        batch = batch.double()
        self.mean = (1 - weight) * self.mean + weight * batch.mean(0)
        self.var = (1 - weight) * self.var + weight * batch.var(0)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(16, 4, generator=generator) * (1 + i % 3) + i % 5 for i in range(count)]


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("staleness", [0, 1, 3, 7])
@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
def test_stale_statistics_commit_to_the_serial_moving_average(momentum, staleness, passes):
    """Each batch's pass starts from the statistics of `staleness` commits before the one it is committed to."""
    model = nn.BatchNorm1d(4, momentum=momentum)
    slot = Slot(model)
    binding = slot.replica(model)
    in_training(model, binding.module)
    serial = Average(momentum)
    versions = [[buffer.clone() for buffer in slot.buffers]]
    stream = batches(40)
    for u in range(0, len(stream), passes):
        step = u // passes
        read = max(0, step - staleness)
        binding.point_at(slot.parameters, versions[read])
        for batch in stream[u : u + passes]:
            binding.module(batch)
            serial.add(batch)
        new = [torch.empty_like(buffer) for buffer in versions[-1]]
        binding.commit_buffers(versions[-1], new, unchanged=read == step)
        versions.append(new)
        mean, var, count = (new[[e.name for e in binding._entries].index(n)] for n in STATISTICS)
        torch.testing.assert_close(mean.double(), serial.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(var.double(), serial.var, rtol=1e-4, atol=1e-5)
        assert (var > 0).all()
        assert count == serial.count


def test_a_pass_on_the_newest_version_commits_its_very_bits():
    model = nn.BatchNorm1d(4)
    slot = Slot(model)
    binding = slot.replica(model)
    in_training(model, binding.module)
    for batch in batches(10):
        model(batch)
        binding.point_at(slot.parameters, slot.buffers)
        binding.module(batch)
        binding.commit_buffers(slot.buffers, slot.buffers, unchanged=True)
    assert all(torch.equal(a, b) for a, b in zip(slot.buffers, dict(model.named_buffers()).values(), strict=True))


@given(
    momentum=st.floats(0.01, 0.99),
    before=st.floats(0.0, 1e3),
    base=st.floats(0.0, 1e3),
    batch=st.floats(0.0, 1e3),
)
def test_a_committed_variance_stays_positive_and_exact_where_base_is_before(momentum, before, base, batch):
    rule = BufferRule(averages=True, momentum=momentum)
    b, n = torch.tensor([before], dtype=torch.float64), torch.tensor([base], dtype=torch.float64)
    a = (1 - momentum) * b + momentum * batch
    new = rule.commit(0, [b], [a], [n])
    assert new >= -1e-9
    assert torch.equal(rule.commit(0, [b], [a], [b]), a)
    if not torch.equal(a, b):
        torch.testing.assert_close(new, (1 - momentum) * n + momentum * batch, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_a_run_keeps_the_statistics_of_a_serial_pass(layer, update, momentum):
    """The layer comes first, so its statistics are those of the data, whatever was learned meanwhile."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        norm = layer(2, momentum=momentum, track_running_stats=True)
        return nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, 3))

    made, serial = model(), model()
    problems.train(made, update=update, staleness=3, micro_batches=3, workers=3, updates=12)
    x, _ = problems.data()
    schedule = hogwild.Schedule(len(x), 16)
    in_training(serial)
    for number in range(12 * (3 if update == "sync" else 1)):
        serial(x[schedule.indices(number)])
    for name in STATISTICS:
        torch.testing.assert_close(getattr(made[1], name), getattr(serial[1], name), rtol=1e-4, atol=1e-5)


def test_statistics_without_a_counter_and_layers_without_statistics():
    names = ["a.running_mean", "b.running_mean"]
    model = nn.ModuleDict({"a": nn.BatchNorm1d(2), "b": nn.BatchNorm1d(2, track_running_stats=False)})
    rules = BufferRule.for_model(model, names)
    assert rules[0] == BufferRule(averages=True, momentum=0.1, counter=None)
    assert problems.train(
        nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)), update="ordered", updates=3
    )


def test_evaluation_mode_leaves_statistics_alone():
    model = problems.conv_bn().eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.warns(UserWarning, match="the model is in eval mode, and trains in it"):
        problems.train(model, update="ordered", updates=5)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not model.training


class Ring(nn.Module):
    """As a queue of keys: a pointer that goes round, and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.register_buffer("ready", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("passes", torch.zeros(2, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        assert 0 <= int(self.pointer) < 4 and int(self.ready) < 2
        self.pointer[0] = (self.pointer[0] + 1) % 4
        self.ready.fill_(1)
        self.passes[1] += 1
        return self.layer(x)


@pytest.mark.parametrize("update", OWN_GRADIENTS)
def test_a_pointer_stays_in_its_ring_and_a_table_counts(update):
    model, expected = Ring(), Ring()
    settings = {"staleness": 3, "micro_batches": 2, "update": update, "updates": 20, "compensation": "none"}
    problems.train(model, workers=1, **settings)
    assert 0 <= int(model.pointer) < 4 and model.ready == 1
    assert model.passes.tolist() == [0, 40 if update == "sync" else 20]
    if update in SAME_BITS:
        problems.train_serially(expected, **settings)
        assert [*map(torch.Tensor.tolist, expected.buffers())] == [*map(torch.Tensor.tolist, model.buffers())]
