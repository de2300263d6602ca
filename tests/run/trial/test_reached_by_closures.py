"""A layer that is reached past the copy of the model, by a closure or a global: trained, or refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS, NAMES, OTHER_BITS, SAME_BITS

import hogwild

REACHED = r"^the model or the loss reaches {} of the model that was given, by a closure .*, or use kind='processes'$"
BODY = REACHED.format(r"body\.weight, body\.bias")


class ByClosure(nn.Module):
    """Its activation is a function that holds the model that it was made for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.act = lambda x: torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Any:
        return self.head(self.act(x))


def global_net() -> nn.Module:
    """One that the losses below reach by a global of this module."""
    global net
    net = problems.mlp()
    return net


net = problems.mlp()


def loss_of_a_global(model: Any, batch: Any) -> Tensor:
    """The last layer is not that of the model that it is called with."""
    return nn.functional.cross_entropy(net[2](model[1](model[0](batch[0]))), batch[1])  # type: ignore[index]


@pytest.mark.parametrize("gradient", [None, "backward"])
@pytest.mark.parametrize("update", NAMES)
def test_threads_would_never_train_it(update: str, gradient: str | None) -> None:
    model = ByClosure()
    with pytest.raises(hogwild.ArgumentError, match=BODY):
        problems.train(model, update=update, kind="threads", gradient=gradient)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("update", [*SAME_BITS, OTHER_BITS[-1]])
def test_processes_train_it_as_they_train_a_method(update: str) -> None:
    class Method(ByClosure):
        def forward(self, x: Tensor) -> Any:
            return self.head(torch.tanh(self.body(x)))

    one, other = (
        problems.train(model, update=update, kind=kind, workers=1, updates=20)
        for model, kind in ((ByClosure(), "auto"), (Method(), "processes"))
    )
    assert one.kind_because == (
        "threads would share body.weight, body.bias, which is reached past their copies of the model"
    )
    assert (one.kind, one.digest) == ("processes", other.digest)


def test_a_loss_that_reaches_a_global_is_refused_where_workers_have_another() -> None:
    """A process imports its module again, in which the global is another one."""
    reached = r"2\.weight, 2\.bias"
    with pytest.raises(hogwild.ArgumentError, match=REACHED.format(reached)):
        problems.train(global_net(), loss=loss_of_a_global, kind="threads")
    anew = rf"^the loss reaches {reached} of the model that was given by a global of {__name__}, .* import anew"
    with pytest.raises(hogwild.ArgumentError, match=anew):
        problems.train(global_net(), loss=loss_of_a_global, kind="processes")


def test_one_that_is_sent_as_it_is_written_reaches_the_shared_model() -> None:
    model = problems.mlp()

    def loss(given: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model[2](given[1](given[0](batch[0]))), batch[1])  # type: ignore[index]

    one = problems.train(model, loss=loss, update="ordered", kind="processes", updates=20)
    assert one.digest == problems.train(update="ordered", kind="processes", updates=20).digest


def drawn_to(start: nn.Module) -> Any:
    """A loss that is drawn to what another model says, without a gradient of it."""

    def loss(given: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            initial = start(batch[0])
        return problems.cross_entropy(given, batch) + 0.01 * (given(batch[0]) - initial).square().mean()

    return loss


@pytest.mark.parametrize("update", [*SAME_BITS, OTHER_BITS[-1]])
def test_what_is_read_without_a_gradient_may_be_reached(update: str) -> None:
    model = problems.mlp()
    for start in (problems.mlp().requires_grad_(requires_grad=False), copy.deepcopy(model)):
        assert problems.train(model, loss=drawn_to(start), update=update, kind="threads", updates=10).updates == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_the_model_that_was_given_is_in_threads_its_start_and_in_processes_the_newest(update: str, kind: str) -> None:
    model = problems.mlp()
    with pytest.raises(hogwild.NotReproducible, match="or reads by a closure the model that was given"):
        problems.train(model, loss=drawn_to(model), update=update, kind=kind)


# --- the start of a run, beside the copy


def near(start: nn.Module, *, share: float = 1.0) -> Any:
    """A loss with a penalty on the distance from `start`, or from a share of it."""

    def loss(given: nn.Module, batch: Any) -> Tensor:
        pairs = zip(given.parameters(), start.parameters(), strict=True)
        return problems.cross_entropy(given, batch) + sum((p - share * q).square().sum() for p, q in pairs)

    return loss


BESIDE = (
    r"^the loss computes with 0\.weight, 0\.bias, 2\.weight and 1 more of the model that was given, .* beside those .* "
    r"use that one, or where .* a copy\.deepcopy of the model, "
)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
@pytest.mark.parametrize("update", NAMES)
def test_it_is_not_guessed_whether_the_start_is_meant(update: str, kind: str, share: float) -> None:
    """In a thread the model that was given is where the run began, and gets a gradient that nobody takes; in a process
    it is the worker's own."""
    model = problems.mlp()
    loss = near(model, share=share) if share else decayed(model)
    with pytest.raises(hogwild.ArgumentError, match=BESIDE):
        problems.train(model, loss=loss, update=update, kind=kind)


def decayed(model: nn.Module) -> Any:
    def loss(given: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(given, batch) + sum(p.square().sum() for p in model.parameters())

    return loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_a_copy_of_the_start_may_be_kept_near(update: str, kind: str) -> None:
    model = problems.mlp()
    start = copy.deepcopy(model)
    run = problems.train(model, loss=near(start), update=update, kind=kind, workers=1, updates=20)
    other = problems.mlp()
    frozen = copy.deepcopy(other).requires_grad_(False)
    assert problems.train(other, loss=near(frozen), update=update, workers=1, updates=20).digest == run.digest


def test_only_a_part_of_it_may_be_meant() -> None:
    model = problems.mlp()

    def loss(given: Any, batch: Any) -> Tensor:
        apart = (given[2].bias - model[2].bias).square().sum()  # type: ignore[index]
        return problems.cross_entropy(given, batch) + apart

    with pytest.raises(hogwild.ArgumentError, match=r"^the loss computes with 2\.bias of the model"):
        problems.train(model, loss=loss, kind="threads", updates=4)


@pytest.mark.parametrize("gradient", [None, "backward"])
def test_a_penalty_makes_no_start_of_what_a_layer_reaches(gradient: str | None) -> None:
    """The copy's own parameters get a gradient by the penalty, and those that the layer holds by all else."""

    def loss(given: nn.Module, batch: Any) -> Tensor:
        decay = sum(parameter.square().sum() for parameter in given.parameters())
        return problems.cross_entropy(given, batch) + 0.1 * decay

    model = ByClosure()
    with pytest.raises(hogwild.ArgumentError, match=BODY):
        problems.train(model, loss=loss, kind="threads", gradient=gradient)
    run = problems.train(model, loss=loss, kind="auto", gradient=gradient, updates=4)
    assert run.kind == "processes"


# --- a layer that holds a function of another, where the loss has a penalty on the same parameters


@dataclass
class Restored:
    """What a model returns."""

    logits: Tensor
    x: Any


@dataclass
class Slotted:
    """Likewise."""

    __slots__ = ("logits", "x")
    logits: Tensor
    x: Any


class Pair(NamedTuple):
    """Likewise."""

    logits: Tensor
    x: Any


class Tied(nn.Module):
    """Its decoder is the encoder, by a function that holds the model that it was made for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode = nn.Linear(8, 4)
        self.head = nn.Linear(8, 3)
        self.decode: Any = lambda h: nn.functional.linear(h, self.encode.weight.t())

    def step(self, x: Tensor, made: Any) -> Any:
        return made(self.head(x), self.decode(torch.tanh(self.encode(x))))

    def forward(self, x: Tensor, made: Any) -> Any:
        return self.step(x, made)


class TiedByMethod(Tied):
    """The same, but for what a copy of the function holds."""

    def __init__(self) -> None:
        super().__init__()
        del self.decode

    def decode(self, h: Tensor) -> Tensor:
        return nn.functional.linear(h, self.encode.weight.t())


def penalized(form: str) -> Any:
    """A loss that is given what layers return in that form; as "method", by no forward pass."""

    def made(logits: Tensor, x: Tensor) -> Any:
        forms: dict[str, Any] = {"tuple": Pair, "dataclass": Restored, "slots": Slotted, "nested": Restored}
        return forms.get(form, SimpleNamespace)(logits=logits, x={"x": [x]} if form == "nested" else x)

    def loss(given: Any, batch: Any) -> Tensor:
        out = (given.step if form == "method" else given)(batch[0], made)
        x = out.x["x"][0] if form == "nested" else out.x
        restored = nn.functional.mse_loss(x, batch[0]) + nn.functional.cross_entropy(out.logits, batch[1])
        return restored + 0.1 * given.encode.weight.square().sum()

    return loss


FORMS = ["method", "tuple", "dataclass", "slots", "nested", "namespace"]


@pytest.mark.parametrize("gradient", [None, "backward"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_worker_has_of_its_own_is_not_beside_it(form: str, gradient: str | None) -> None:
    """A process is sent the function with the model, and what it holds is the worker's: also where nobody asked for
    processes."""
    settings: dict[str, Any] = {"update": "ordered", "workers": 1, "updates": 20, "gradient": gradient}
    one, other = (
        problems.train(model, loss=penalized(form), kind=kind, **settings)
        for model, kind in ((Tied(), "processes" if gradient else "auto"), (TiedByMethod(), "threads"))
    )
    assert one.kind == "processes"
    assert one.digest == other.digest


@pytest.mark.parametrize("form", FORMS)
def test_threads_are_told_that_a_function_holds_it(form: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=REACHED.format(r"encode\.weight")):
        problems.train(Tied(), loss=penalized(form), kind="threads")


class Unsent(Tied):
    """Cannot be pickled."""

    def __getstate__(self) -> Any:
        raise TypeError("stays here")

    def __deepcopy__(self, memo: Any) -> Any:
        other = Unsent.__new__(Unsent)
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other


@pytest.mark.parametrize("form", FORMS[1:])
def test_threads_are_told_so_of_what_cannot_be_pickled(form: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=REACHED.format(r"encode\.weight")):
        problems.train(Unsent(), loss=penalized(form), kind="threads")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_what_the_loss_holds_is_beside_it_nonetheless(kind: str, form: str) -> None:
    """In a process the distance would be that of the worker from itself, which is 0."""
    model, own = Tied(), penalized(form)

    def loss(given: Any, batch: Any) -> Tensor:
        return own(given, batch) + (given.encode.weight - model.encode.weight).square().sum()

    with pytest.raises(hogwild.ArgumentError, match=r"^the loss computes with encode\.weight of the model"):
        problems.train(model, loss=loss, kind=kind)
