"""Replicas: parameters are views with counters of their own; what cannot be replicated is refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import problems
import pytest
import torch
from slots import Slot
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from traits import KINDS

import hogwild
from hogwild import ArgumentError


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


# --- refusals


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.trace(_method)?` is (deprecated|not supported)")
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


def with_buffer(held: torch.Tensor) -> nn.Module:
    model = nn.Linear(8, 3)
    model.register_buffer("held", held)
    return model


def sparse_buffer() -> nn.Module:
    return with_buffer(torch.eye(3).to_sparse())


def nested_buffer() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return with_buffer(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


def quantized_buffer() -> nn.Module:
    """torch itself ends the whole program where one of these is copied to another place."""
    with warnings.catch_warnings(action="ignore"):
        return with_buffer(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))


class Graph(nn.Module):
    """As a net on a graph: what a layer gives is mixed by matrices that are not trained."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.matrix, self.others = nn.Linear(8, 3), matrix, {"same": [matrix.clone()]}
        self.functions = torch.nn.functional

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matrix @ self.functions.relu(self.others["same"][0] @ self.layer(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
@pytest.mark.parametrize("form", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_tensor_that_a_layer_holds_reaches_every_worker(kind, update, form):
    mixed = torch.eye(8).roll(1, 0)
    fixed: dict[str, Any] = {"update": update, "workers": 1, "updates": 6, "batch_size": 8}
    torch.manual_seed(0)
    dense = problems.train(Graph(mixed), kind="threads", **fixed)
    torch.manual_seed(0)
    sparse = problems.train(Graph(getattr(mixed, form)()), kind=kind, **fixed)
    assert all(torch.equal(dense.state[key], value) for key, value in sparse.state.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scripted, r"^0 is compiled or scripted \(TopLevelTracedModule\).* pass the module it was made from$"),
        (compiled, r"^the model is compiled or scripted \(OptimizedModule\)"),
        (lazy, r"^0\.weight is lazy and not yet materialised; run one batch through the model first$"),
        (lazy_buffer, r"^1\.running_mean is lazy"),
        (elsewhere, r"^weight is on meta, .* pass model\.cpu\(\)$"),
        (sparse_buffer, r"^held is a torch.sparse_coo tensor, and workers share dense ones of plain numbers"),
        (nested_buffer, r"^held is a nested tensor"),
        (quantized_buffer, r"^held is a torch.qint8 tensor"),
        (hooked, r"^weight has a post-accumulate-grad hook"),
        (overlapping, r"^weight and bias share memory without being one Parameter"),
        (overlapping_last, r"^b and c share memory without being one Parameter"),
        (gappy, r"^weight has shape \(3, 8\) and strides \(16, 2\)"),
        (computed, r"^derived is the result of a computation, .* set it to None where forward computes it, or keep "),
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
