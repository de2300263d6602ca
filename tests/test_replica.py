"""Replicas: parameters are views with counters of their own; buffers are private and committed by their rule."""

from __future__ import annotations

from typing import Any

import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hogwild
from hogwild import ArgumentError
from hogwild.memory import Arena, Block, Layout
from hogwild.replica import Anatomy, Binding, BufferRule, replicate

KINDS = ("threads", "processes")


class Slot:
    """Shared memory laid out as a slot is, holding a model's values."""

    def __init__(self, model: nn.Module) -> None:
        anatomy = Anatomy.of(model)
        self.trained = list(anatomy.trained.values())
        self._parameters, self._buffers = (Layout.of(list(x.items())) for x in (anatomy.trained, anatomy.buffers))
        self._arena = Arena(self._parameters.nbytes + self._buffers.nbytes)
        self.parameters, self.buffers = self.views()
        for target, value in zip(self.parameters, self.trained, strict=True):
            target.copy_(value.detach())
        for target, buffer in zip(self.buffers, anatomy.buffers.values(), strict=True):
            target.copy_(buffer)

    def views(self) -> tuple[list[Tensor], list[Tensor]]:
        """As each worker makes its own."""
        parameters = self._parameters.views(Block.shared(self._arena, 0))
        return parameters, self._buffers.views(Block.shared(self._arena, self._parameters.nbytes))

    def replica(self, model: nn.Module) -> Binding:
        views, buffers = self.views()
        parameters = [nn.Parameter(view) for view in views]
        substitutes = {id(p): q for p, q in zip(self.trained, parameters, strict=True)}
        binding = Binding(replicate(model, substitutes), parameters, self._buffers)
        binding.point_at(views, buffers)
        return binding


def in_training(*models: nn.Module) -> None:
    for model in models:
        model.train()


# --- parameters


def test_replicas_share_memory_and_nothing_else():
    model = problems.mlp()
    slot = Slot(model)
    one, other = slot.replica(model), slot.replica(model)
    x, y = problems.data()
    loss = cross_entropy(one.module(x), y)
    versions = [parameter._version for parameter in one.parameters]
    with torch.no_grad():
        for parameter in other.parameters:
            parameter.add_(1.0)
    assert [parameter._version for parameter in one.parameters] == versions
    assert all(torch.equal(p, q) for p, q in zip(one.parameters, other.parameters, strict=True))
    torch.autograd.grad(loss, one.parameters)  # no saved tensor was modified, as far as this graph can tell
    assert hogwild.digest(model) == hogwild.digest(problems.mlp())


def test_a_parameter_in_common_would_break_the_other_graph():
    """What replicas are for: with one Parameter for all, an update in the middle ends in an error."""
    model = problems.mlp()
    x, y = problems.data()
    loss = cross_entropy(model(x), y)
    with torch.no_grad():
        model[2].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, list(model.parameters()))


def test_a_replica_can_be_pointed_at_another_slot():
    model = problems.mlp()
    first, second = Slot(model), Slot(model)
    for view in second.parameters:
        view.zero_()
    binding = first.replica(model)
    x, _ = problems.data()
    assert torch.equal(binding.point_at(second.parameters, second.buffers)(x), torch.zeros(len(x), 3))
    assert torch.equal(binding.point_at(first.parameters, first.buffers)(x), model(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 8, bias=False)
        self.back = nn.Linear(8, 8, bias=False)
        self.back.weight = self.into.weight
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.back(torch.relu(self.into(x))))


@pytest.mark.parametrize("kind", KINDS)
def test_tied_parameters_stay_tied(kind):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert model.back.weight is model.into.weight
        return problems.cross_entropy(model, batch)

    model = Tied()
    run = problems.train(model, loss=loss, kind=kind, updates=5)
    assert model.back.weight is model.into.weight
    assert run.state.keys() == model.state_dict().keys()
    assert torch.equal(run.state["back.weight"], run.state["into.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_are_shared_and_stay(kind):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert not model[0].weight.requires_grad
        assert torch.equal(model[0].weight, frozen)
        return problems.cross_entropy(model, batch)

    model = problems.mlp()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    problems.train(model, loss=loss, kind=kind, updates=5)
    assert torch.equal(model[0].weight, frozen)
    assert not model[0].weight.requires_grad
    assert not torch.equal(model[2].weight, problems.mlp()[2].weight)


@pytest.mark.parametrize("gradient", ["backward", "grad"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_hooks_are_carried(kind, gradient):
    model = problems.mlp()
    model[0].weight.register_hook(lambda gradient: gradient * mask)
    mask = torch.zeros(16, 8)
    mask[3] = 1
    problems.train(model, kind=kind, gradient=gradient, updates=5)
    moved = (model[0].weight != problems.mlp()[0].weight).any(dim=1)
    assert moved.nonzero().tolist() == [[3]]


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
@pytest.mark.parametrize("update", ["hogwild", "locked", "snapshot", "ordered", "sync"])
def test_other_buffers(update, kind):
    model = Reassigned()
    problems.train(model, update=update, kind=kind, workers=2 if update in ("ordered", "sync") else 1, updates=5)
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


# --- running statistics


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


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


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
@pytest.mark.parametrize("update", ["ordered", "sync"])
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
    problems.train(model, update="ordered", updates=5)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not model.training


# --- refusals


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.trace(nn.Linear(8, 3), torch.zeros(1, 8)))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def lazy_buffer() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.LazyBatchNorm1d(affine=False))


def elsewhere() -> nn.Module:
    return nn.Linear(8, 3, device="meta")


def hooked() -> nn.Module:
    model = nn.Linear(8, 3)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


def overlapping() -> nn.Module:
    model = nn.Linear(8, 3)
    model.bias = nn.Parameter(model.weight.detach()[0, :3])
    return model


def overlapping_last() -> nn.Module:
    base = torch.zeros(40)
    model = nn.Linear(8, 3)
    for name, start in (("a", 0), ("b", 10), ("c", 15)):
        setattr(model, name, nn.Parameter(base[start : start + 10]))
    return model


def gappy() -> nn.Module:
    model = nn.Linear(8, 3)
    model.weight = nn.Parameter(torch.zeros(3, 16)[:, ::2])
    return model


def compiled() -> nn.Module:
    return torch.compile(nn.Linear(8, 3))


def computed() -> nn.Module:
    """`nn.Module` attributes that are results of a computation cannot be copied to a worker."""
    model = nn.Linear(8, 3)
    model.derived = model.weight * 2
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scripted, r"^0 is compiled or scripted \(TopLevelTracedModule\).* pass the module it was made from$"),
        (compiled, r"^the model is compiled or scripted \(OptimizedModule\)"),
        (lazy, r"^0\.weight is lazy and not yet materialised; run one batch through the model first$"),
        (lazy_buffer, r"^1\.running_mean is lazy"),
        (elsewhere, r"^weight is a torch.strided tensor on meta, .* pass model\.cpu\(\)$"),
        (hooked, r"^weight has a post-accumulate-grad hook"),
        (overlapping, r"^weight and bias share memory without being one Parameter"),
        (overlapping_last, r"^b and c share memory without being one Parameter"),
        (gappy, r"^weight has shape \(3, 8\) and strides \(16, 2\)"),
        (computed, r"derived"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_replicated_is_refused_by_name(kind, make, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        hogwild.train(make(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, kind=kind, updates=4)
    assert "\n" not in str(caught.value)


def test_parametrized_layers_are_trained():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)))
    before = hogwild.digest(model)
    run = problems.train(model, update="ordered", updates=5)
    assert run.digest == hogwild.digest(model) != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameters_python_attributes_are_there_from_the_first_step(kind):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)
            self.layer.weight.scale = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.layer.weight * self.layer.weight.scale)

    assert problems.train(Scaled(), kind=kind, updates=2).updates == 2
