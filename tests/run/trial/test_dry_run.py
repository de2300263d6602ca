"""The step before the run: what is wrong with a loss is said by name, before any worker starts."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from traits import KINDS, OTHER_BITS, SAME_BITS

import hogwild
from hogwild import ArgumentError, NotReproducible
from hogwild.data.seeding import DrawDetector, preserved_generators
from hogwild.data.sources import as_source
from hogwild.model.anatomy import Anatomy
from hogwild.run.trial.dry_run import DryRun, dry_run

TORCH, NUMPY, PYTHON = "torch's default generator", "numpy's global generator", "Python's random module"


def tried(model: nn.Module, loss: Any = problems.cross_entropy, data: Any = None, batch_size: int = 16) -> DryRun:
    source = as_source(data or problems.data(), batch_size=batch_size, shuffle=True, seed=0, collate=None)
    return dry_run(model, Anatomy.of(model).trained, source, loss, seed=0, workers=2)


def refused(message: str, loss: Any, model: nn.Module | None = None) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        tried(model or problems.mlp(), loss)
    assert "\n" not in str(caught.value)


def parts(model: nn.Module, batch: Any) -> Iterator[Tensor]:
    x, y = batch
    for start in range(0, len(x), 4):
        yield nn.functional.cross_entropy(model(x[start : start + 4]), y[start : start + 4])


# --- losses


@pytest.mark.parametrize(
    "loss",
    [
        problems.cross_entropy,
        parts,
        lambda model, batch: list(parts(model, batch)),
        lambda model, batch: problems.cross_entropy(model, batch).reshape(1),
        lambda model, batch: problems.cross_entropy(model, batch).double(),
    ],
)
def test_what_a_loss_may_return(loss):
    assert tried(problems.mlp(), loss) == DryRun(frozenset(), 16, ())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, b: m(b[0]), r"^loss returned a tensor of shape \[16, 3\]; it must return a scalar tensor"),
        (lambda m, b: m(b[0]).mean(1), r"^loss returned a tensor of shape \[16\]; .* \(take .mean\(\) or .sum\(\)\)$"),
        (lambda m, b: [m(b[0]).mean(1)], r"^loss returned a tensor of shape \[16\]"),
        (lambda m, b: (value for value in [m(b[0])]), r"^loss returned a tensor of shape \[16, 3\]"),
        (lambda m, b: None, r"^loss returned a NoneType; .* \(is a return missing\? the run itself calls backward\)$"),
        (lambda m, b: {"loss": m(b[0]).sum()}, r"^loss returned a dict; .* \(return the loss in it alone\)$"),
        (lambda m, b: problems.cross_entropy(m, b).item(), r"^loss returned a float; .* \(leave out \.item\(\)\)$"),
        (lambda m, b: [], "^loss returned an empty list"),
        (lambda m, b: (value for value in []), "^loss yielded nothing"),
        (lambda m, b: problems.cross_entropy(m, b) * float("nan"), "^loss is nan at the first step"),
        (lambda m, b: problems.cross_entropy(m, b) * float("inf"), "^loss is inf at the first step"),
        (lambda m, b: [problems.cross_entropy(m, b), torch.tensor(1.0)], "no parameter of the model takes part in"),
        (lambda m, b: torch.tensor(1.0), "^loss returned a value that no parameter of the model takes part in"),
        (lambda m, b: problems.cross_entropy(m, b).detach(), "no parameter of the model takes part in"),
        (lambda m, b: torch.ones((), requires_grad=True) * 2, "^loss does not depend on any trained parameter"),
        (lambda m, b: {}["y"], "^loss raised at the first step: KeyError: 'y'$"),
        (lambda m: m, r"^loss raised at the first step: TypeError: .*takes 1 positional argument"),
        ("cross_entropy", "^loss raised at the first step: TypeError: 'str' object is not callable"),
        (lambda m, b: m(b[0].double()).sum(), "^loss raised at the first step: RuntimeError: mat1 and mat2"),
        (lambda m, b: m(b[0]).sum().to(torch.complex64), "^loss returned a torch.complex64 value; it must"),
    ],
)
def test_what_a_loss_may_not_return(loss, message):
    refused(message, loss)


def test_a_loss_of_another_model_than_the_one_it_is_given():
    other = problems.mlp()
    refused("use that model in it", lambda model, batch: problems.cross_entropy(other, batch))
    refused("use that model in it", lambda model, batch: problems.cross_entropy(other, batch), other)


def test_errors_of_several_lines_are_told_in_one():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("the first line\nand the second")

    refused("^loss raised at the first step: ValueError: the first line", loss)


def test_data_that_raises_is_told_apart_from_the_loss():
    class Broken(Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            raise OSError("no such image\nat all")

    with pytest.raises(ArgumentError, match=r"^data could not give its first batch: OSError: no such image") as caught:
        tried(problems.mlp(), data=Broken())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sample", [lambda i: (torch.zeros(1 + i), i), lambda i: object(), lambda i: {f"at {i}": i}])
def test_samples_that_cannot_be_stacked_are_told_of_collate(sample):
    data = [sample(i) for i in range(20)]
    with pytest.raises(ArgumentError, match=r"^data: samples are not of one form \(.*\); give collate=, a function"):
        tried(problems.mlp(), data=data)


# --- what it finds


def test_sparse_gradients_are_found_by_position():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2)])

    def loss(model: Any, batch: Any) -> Tensor:
        index = torch.tensor([1])
        return (model[0](model[1](index)) + model[2](index)).sum()

    assert tried(model, loss).sparse == {2}


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(7, 2), 7),
        ((torch.zeros(7, 2), torch.zeros(7)), 7),
        ({"x": torch.zeros(7, 2)}, 7),
        ([[torch.zeros(7)]], 7),
        (torch.tensor(1.0), 1),
        ("text", 1),
        ((), 1),
    ],
)
def test_samples_of_a_source(batch, samples):
    class Stream:
        def batch(self, update: int, generator: torch.Generator) -> Any:
            return batch

    assert tried(problems.mlp(), lambda model, batch: model(torch.ones(8)).sum(), Stream()).samples == samples


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(()) + np.random.rand() + random.random()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]


def deep(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ModuleDict({"a": nn.Identity()})["a"], nn.Sequential(nn.ReLU(), layer))


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (nn.Dropout(0.3), (f"2.1 (Dropout) ({TORCH})",)),
        (nn.RReLU(), (f"2.1 (RReLU) ({TORCH})",)),
        (nn.AlphaDropout(0.3), (f"2.1 (AlphaDropout) ({TORCH})",)),
        (Attention(), (f"2.1 (Attention) ({TORCH})",)),
        (nn.Identity(), ()),
        (nn.Dropout(0.0), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_innermost_module_that_drew_is_named(layer, draws):
    model = deep(layer)
    if isinstance(layer, Attention):
        draws = tuple(draw.replace("2.1 (Attention)", "2.1.attention (MultiheadAttention)") for draw in draws)
    assert tried(model).draws == draws


def test_every_module_that_drew_is_named():
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3), nn.Dropout(0.1))
    assert tried(model).draws == (f"0 (Dropout), 2 (Dropout) ({TORCH})",)


def test_draws_of_the_loss_the_data_and_of_other_generators_are_told_apart():
    class Augmented(Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(8), index % 3

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) + torch.rand(())

    assert tried(problems.mlp(), loss).draws == (f"the loss ({TORCH})",)
    assert tried(problems.mlp(), data=Augmented()).draws == (f"fetching a batch ({TORCH})",)
    found = tried(nn.Sequential(Noise(), nn.Linear(8, 3))).draws
    assert found == (f"0 (Noise) ({TORCH})", f"the loss ({NUMPY})", f"the loss ({PYTHON})")


def test_what_the_updates_own_generator_draws_is_no_draw():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        generator = hogwild.worker_info().generator
        return problems.cross_entropy(model, batch) + torch.rand((), generator=generator)

    assert tried(problems.mlp(), loss).draws == ()


@pytest.mark.parametrize("update", SAME_BITS)
def test_threads_refuse_what_draws_where_they_promise_the_same_bits(update):
    with pytest.raises(NotReproducible, match=r"2 \(Dropout\) \(torch's default generator\), which all .*'processes'"):
        problems.train(problems.dropout(), update=update)


@pytest.mark.parametrize("update", OTHER_BITS)
def test_threads_may_draw_where_nothing_is_promised(update):
    assert problems.train(problems.dropout(), update=update, updates=4).updates == 4


# --- what it leaves


def test_it_leaves_model_generators_and_flags_as_they_were():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    before = hogwild.digest(model)
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    with preserved_generators():
        detector = DrawDetector()
        tried(model)
        assert detector.drawn() == []
    assert hogwild.digest(model) == before
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hogwild.worker_info() is None


def test_it_leaves_a_source_as_it_was():
    class Remembers:
        seen = 0

        def batch(self, update: int, generator: torch.Generator) -> Any:
            self.seen += 1
            return problems.data()

    source = Remembers()
    tried(problems.mlp(), data=source)
    assert source.seen == 0


def test_it_computes_gradients_although_the_caller_forbids_them():
    with torch.no_grad():
        tried(problems.mlp())
        assert problems.train(updates=3).updates == 3


@pytest.mark.parametrize("policy", ["skip", "ignore"])
def test_a_first_batch_that_is_not_finite_is_left_out_where_that_is_asked_for(policy):
    x, y = problems.data()
    x[3] = float("nan")
    settings = {"data": (x, y), "shuffle": False, "update": "ordered", "epochs": 1}
    with pytest.raises(hogwild.ArgumentError, match="the first batch holds NaN"):
        problems.train(**settings)
    run = problems.train(on_nonfinite=policy, **settings)
    assert math.isnan(run.losses[0]) and math.isfinite(run.losses[-1]) == (policy == "skip")


class Centred(nn.Module):
    """Has a buffer that is made, or registered, when it is needed."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        if registered:
            self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        found, mean = getattr(self, "mean", None), x.detach().mean(0)
        if "mean" not in self._buffers:
            self.register_buffer("mean", mean)
        self.mean = mean if found is None else 0.9 * found + 0.1 * mean
        return self.layer(x - self.mean)


@pytest.mark.parametrize("registered", [True, False])
def test_a_buffer_that_the_first_forward_pass_makes_is_told(registered):
    model = Centred(registered=registered)
    with pytest.warns(UserWarning, match="makes the buffer mean, of which each worker has one of its own"):
        problems.train(model, update=OTHER_BITS[-1], updates=4)
    with pytest.raises(NotReproducible), pytest.warns(UserWarning, match="makes the buffer mean"):
        problems.train(model, update=SAME_BITS[0], updates=4)
    model(problems.data()[0])
    problems.train(model, update=SAME_BITS[0], updates=4)
    assert "mean" in model.state_dict()


class Cached(nn.Module):
    """Keeps what it would compute again, as layers do that encode positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "positions"):
            self.register_buffer("positions", torch.linspace(0, 1, 8), persistent=False)
        return self.layer(x + self.positions)


def test_a_cache_that_is_not_saved_may_be_made():
    model = Cached()
    digests = {problems.train(copy.deepcopy(model), update="ordered", kind=kind, updates=8).digest for kind in KINDS}
    assert len(digests) == 1
