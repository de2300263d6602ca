"""Layers whose weights a hook of torch's computes before each forward pass train as they do by hand."""

from __future__ import annotations

import copy
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from traits import EXACT, KINDS, NAMES, SAME_BITS, VERSIONED

import hogwild
from hogwild import ArgumentError, WorkerError
from hogwild.determinism.flip import first_gradients
from hogwild.model import computed
from hogwild.model.computed import compute_weights, computed_weights, copy_of_model

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`torch\.nn\.utils\.weight_norm` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:staleness"),
]


def pruned() -> nn.Module:
    model = problems.mlp()
    prune.l1_unstructured(model[0], "weight", 0.3)
    prune.random_unstructured(model[0], "bias", 2)
    return model


def pruned_again() -> nn.Module:
    model = pruned()
    prune.ln_structured(model[0], "weight", 0.2, n=2, dim=1)
    return model


def pruned_everywhere() -> nn.Module:
    model = problems.mlp()
    every = [(model[0], "weight"), (model[2], "weight")]
    prune.global_unstructured(every, prune.L1Unstructured, amount=0.4)
    return model


def pruned_by_a_mask() -> nn.Module:
    model = problems.mlp()
    prune.custom_from_mask(model[2], "weight", torch.rand(3, 16) < 0.5)
    return model


def normed() -> nn.Module:
    model = problems.mlp()
    weight_norm(model[0])
    return model


def spectral() -> nn.Module:
    """After a forward pass, until which the weight is no result of a computation."""
    model = problems.mlp()
    spectral_norm(model[0])
    model(torch.ones(1, 8))
    return model


def with_batch_norm() -> nn.Module:
    model = problems.conv_bn()
    spectral_norm(model[1])
    prune.l1_unstructured(model[5], "weight", 0.3)
    model(problems.data()[0])
    return model


class Recurrent(nn.Module):
    """An LSTM lists its weights once more."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 6, batch_first=True)
        weight_norm(self.cells, "weight_hh_l0")
        prune.l1_unstructured(self.cells, "weight_ih_l0", 0.3)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x[:, :, None])[0][:, -1])


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent()


class Tied(nn.Module):
    """Two layers have one parameter, of which one prunes, and a layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.back.weight = self.into.weight
        self.again = self.into
        prune.l1_unstructured(self.into, "weight", 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.again(self.back(torch.relu(self.into(x)))))


def tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied()


MODELS = [
    *(pruned, pruned_again, pruned_everywhere, pruned_by_a_mask),
    *(normed, spectral, with_batch_norm, recurrent, tied),
]
by_model = pytest.mark.parametrize("make", MODELS)
by_kind = pytest.mark.parametrize("kind", KINDS)


class InOrder:
    """The same batches for a loop by hand."""

    def batch(self, number: int, generator: Any) -> tuple[Tensor, Tensor]:
        x, y = problems.data()
        return x[16 * number :][:16], y[16 * number :][:16]

    def __len__(self) -> int:
        return 12


def by_hand(model: nn.Module) -> str:
    optimizer = problems.SGD(model.parameters())
    for number in range(12):
        optimizer.zero_grad()
        problems.cross_entropy(model, InOrder().batch(number, None)).backward()
        optimizer.step()
    return hogwild.digest(model)


@pytest.mark.parametrize("gradient", ["backward", "grad"])
@by_model
def test_one_worker_does_what_a_loop_by_hand_does(make, gradient):
    model = make()
    run = problems.train(model, data=InOrder(), update="ordered", staleness=0, workers=1, gradient=gradient, updates=12)
    assert run.digest == hogwild.digest(model) == by_hand(make())
    assert all(torch.equal(run.state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("update", NAMES)
def test_every_rule_does(update):
    settings = {"micro_batches": 1, "staleness": 0, "compensation": "none"}
    run = problems.train(with_batch_norm(), data=InOrder(), update=update, workers=1, updates=12, **settings)
    assert run.digest == by_hand(with_batch_norm())


@by_kind
@by_model
def test_workers_do_what_the_reference_does(make, kind):
    settings = {"update": "ordered", "staleness": 3, "optimizer": problems.MOMENTUM, "updates": 12}
    model = make()
    problems.train_serially(model, **settings)
    assert problems.train(make(), kind=kind, workers=3, **settings).digest == hogwild.digest(model)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("update", SAME_BITS)
def test_any_number_of_workers_does(update, workers):
    settings = {"update": update, "staleness": 3, "micro_batches": 4, "updates": 8}
    model = with_batch_norm()
    problems.train_serially(model, **settings)
    assert problems.train(with_batch_norm(), workers=workers, **settings).digest == hogwild.digest(model)


@by_kind
@pytest.mark.parametrize("update", EXACT)
def test_a_resumed_run_ends_where_the_whole_one_does(update, kind, tmp_path):
    settings = {"update": update, "kind": kind, "workers": 1, "optimizer": problems.ADAM, "updates": 20}
    whole = problems.train(with_batch_norm(), **settings)
    stops = {"out": tmp_path, "evaluate": problems.interrupting(2), "evaluate_every": 6}
    with pytest.raises(KeyboardInterrupt):
        problems.train(with_batch_norm(), **stops, **settings)
    model = with_batch_norm()
    resumed = problems.train(model, out=tmp_path, resume=tmp_path, **settings)
    assert resumed.digest == whole.digest == hogwild.digest(model)


@pytest.mark.parametrize("update", VERSIONED)
def test_a_run_can_be_replayed(update, tmp_path):
    problems.train(with_batch_norm(), update=update, out=tmp_path)
    parts = {"data": problems.data(), "loss": problems.cross_entropy, "optimizer": problems.SGD}
    assert hogwild.replay(tmp_path, model=with_batch_norm(), **parts).equal


@by_model
def test_a_model_can_be_checked(make):
    settings = {"optimizer": problems.SGD, "update": "ordered", "kind": "threads", "updates": 4}
    assert hogwild.check(make(), problems.data(), problems.cross_entropy, runs=2, **settings).identical


def test_a_model_can_be_probed():
    parts = {"model": pruned(), "data": problems.data(), "loss": problems.cross_entropy}
    assert hogwild.probe("ordered", "threads", updates=20, **parts).exact


def test_the_first_gradients_are_those_of_a_copy():
    model = pruned()
    gradients = first_gradients(model, problems.cross_entropy, InOrder(), seed=0)
    problems.cross_entropy(model, InOrder().batch(0, None)).backward()
    assert all(torch.equal(gradients[name], parameter.grad) for name, parameter in model.named_parameters())


# --- the weights beside the parameters


def masked(model: nn.Module) -> Tensor:
    return model[0].weight_mask * model[0].weight_orig


@by_kind
def test_evaluations_read_the_weights_of_their_version(kind):
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"apart": (model[0].weight - masked(model)).abs().max().item()}

    run = problems.train(pruned(), kind=kind, updates=12, evaluate=evaluate, evaluate_every=4, ema=0.5)
    assert [(row["apart"], row["ema_apart"]) for row in run.evaluations] == [(0, 0)] * 3


@by_kind
def test_what_was_trained_can_be_pruned_again(kind):
    """Which goes by the weights, not by the parameters."""
    model, serial = pruned(), pruned()
    settings = {"update": "ordered", "staleness": 1, "updates": 12}
    for _ in range(2):
        problems.train(model, kind=kind, **settings)
        assert torch.equal(model[0].weight, masked(model))
        problems.train_serially(serial, **settings)
        serial(problems.data()[0])
        for one in (model, serial):
            prune.l1_unstructured(one[0], "weight", 0.3)
    assert torch.equal(model[0].weight_mask, serial[0].weight_mask)
    assert hogwild.digest(model) == hogwild.digest(serial)


def test_the_trained_model_can_be_copied_and_used():
    model = normed()
    problems.train(model)
    x, _ = problems.data()
    assert torch.equal(copy.deepcopy(model)(x), model(x))


class Attention(nn.Module):
    """Reads the weight of a layer that it never calls, so no hook of that layer is called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.heads(x[:, None], x[:, None], x[:, None])[0][:, 0])


@by_kind
def test_a_pruned_layer_that_is_never_called_is_told(kind):
    model = Attention()
    prune.l1_unstructured(model.heads.out_proj, "weight", 0.3)
    with pytest.raises(WorkerError, match="backward through the graph a second time"):  # as by hand
        problems.train(model, kind=kind, on_worker_failure="raise")


@by_kind
def test_a_layer_that_is_never_called_is_not_normalised(kind):
    settings = {"update": "ordered", "staleness": 1, "updates": 8}
    trained, serial = Attention(), Attention()
    for one in (trained, serial):
        spectral_norm(one.heads.out_proj)
    problems.train_serially(serial, **settings)
    problems.train(trained, kind=kind, **settings)
    x, _ = problems.data()
    assert torch.equal(trained(x), serial(x))


def test_another_attribute_with_that_weight_is_refused():
    model = pruned()
    model.kept = model[0].weight
    with pytest.raises(ArgumentError, match=r"^kept is .*; set it to None where forward computes it, or keep"):
        problems.train(model)
    model.kept = None
    assert problems.train(model, updates=2).updates == 2


@pytest.mark.parametrize("gone", ["None", "deleted"])
@pytest.mark.parametrize("make", [pruned, normed, spectral])
def test_a_weight_that_is_not_there_is_left_to_the_hook(make, gone):
    """As an earlier version advised."""
    model, before = make(), make()
    for layer in model.modules():
        for name in computed_weights(layer):
            delattr(layer, name) if gone == "deleted" else setattr(layer, name, None)
    digests = {problems.train(one, update="ordered", updates=6).digest for one in (model, before)}
    assert len(digests) == 1


class Scaled(prune.L1Unstructured):
    """Computes the weight in a way of its own."""

    def apply_mask(self, module: nn.Module) -> Tensor:
        return 2 * super().apply_mask(module)


class Rows(nn.Parameter):
    """A table, as it is read by rows at a version: one that is gone by the time that a worker starts."""


@pytest.mark.parametrize("by", [Scaled, "rows"])
def test_what_a_hook_alone_can_compute_is_computed_in_forward_passes_alone(monkeypatch, by):
    monkeypatch.setattr(computed, "RowParameter", Rows)
    layer = nn.Linear(8, 3)
    if by == "rows":
        prune.l1_unstructured(layer, "weight", 0.3)
        layer.weight_orig = Rows(layer.weight_orig.detach())
    else:
        by.apply(layer, "weight", 0.3)
    before = layer.weight
    compute_weights(layer)
    assert layer.weight is before
    layer(torch.ones(1, 8))
    assert layer.weight is not before


def test_a_hook_of_ones_own_trains_as_by_hand():
    model = problems.mlp()
    Scaled.apply(model[0], "weight", 0.3)
    by_hand = copy_of_model(model)
    problems.train_serially(by_hand, update="ordered", updates=6, compensation="none")
    run = problems.train(model, update="ordered", updates=6, compensation="none", workers=2)
    assert all(torch.equal(value, run.state[name]) for name, value in by_hand.state_dict().items())
