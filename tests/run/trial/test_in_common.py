"""What the model and the loss have in common: a copy of the model alone has one of its own, which no loss sees."""

from __future__ import annotations

from collections import deque
from typing import Any

import problems
import pytest
import torch
from contexts import FIXED, Context, Extractor, Told
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hogwild
from hogwild.data.holders import holders_of
from hogwild.run.trial import kept_by_loss


class Listed(Told):
    def leave(self, value: Tensor) -> None:
        self.context.append(value)


def by_context() -> tuple[nn.Module, Any]:
    """Whose loss is another where nothing was left, and no error."""
    context = Context()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        own = problems.cross_entropy(model, batch)
        return own if context.last is None else own + context.last

    return Told(context), loss


def by_list() -> tuple[nn.Module, Any]:
    left: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        own = problems.cross_entropy(model, batch) + sum(left)
        left.clear()
        return own

    return Listed(left), loss


def by_extractor() -> tuple[nn.Module, Any]:
    """Whose loss raises where nothing was left."""
    model = problems.mlp()
    extractor = Extractor(model[0])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        scores = model(batch[0])
        return cross_entropy(scores, batch[1]) + extractor.features["hidden"].square().mean()

    return model, loss


class Queued(Told):
    def leave(self, value: Tensor) -> None:
        self.context.append(value)


def by_deque() -> tuple[nn.Module, Any]:
    left = deque[Tensor](maxlen=1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) + sum(left)

    return Queued(left), loss


class Weight(Context):
    pass


class Weighing(Told):
    """Leaves a tensor without its graph, by which the loss is weighed."""

    def leave(self, value: Tensor) -> None:
        self.context.last = value.detach()


def by_weight() -> tuple[nn.Module, Any]:
    context = Weight()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        own = problems.cross_entropy(model, batch)
        return own if context.last is None else own * context.last

    return Weighing(context), loss


WAYS = {"Context": by_context, "list": by_list, "Extractor": by_extractor, "deque": by_deque, "Weight": by_weight}
either = pytest.mark.parametrize("name", WAYS)


@either
def test_processes_have_it_in_common_too(name):
    """So the loss is that of a loop by hand, at any number of workers."""
    by_hand, loss = WAYS[name]()
    problems.train_serially(by_hand, loss=loss, **FIXED)
    for workers in (1, 2):
        model, loss = WAYS[name]()
        run = problems.train(model, loss=loss, kind="auto", workers=workers, **FIXED)
        assert run.kind == "processes"
        assert run.kind_because == f"threads would have copies of the {name} that the model and the loss have in common"
        assert all(torch.equal(value, run.state[key]) for key, value in by_hand.state_dict().items())


@either
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_threads_are_refused(name, workers, update):
    model, loss = WAYS[name]()
    with pytest.raises(hogwild.ArgumentError, match=f"the model and the loss have one {name} in common, where"):
        problems.train(model, loss=loss, kind="threads", update=update, workers=workers, updates=2)


def test_what_the_loss_does_not_read_is_left_alone():
    """Nothing hangs on it, and threads train as before."""
    context = Context()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return problems.cross_entropy(model, batch) + 0 * len(vars(context))

    run = problems.train(Told(context), loss=loss, kind="threads", workers=2, updates=4)
    assert run.kind == "threads"


def annealing() -> tuple[nn.Module, Any]:
    """The loss is another at each call, and reads nothing of what the model leaves."""
    context, calls = Context(), [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls[0] += 1
        return (1 + calls[0] / 8) * problems.cross_entropy(model, batch) + 0 * len(vars(context))

    return Told(context), loss


def test_a_loss_that_is_another_at_each_call_is_not_taken_for_one_that_reads_it():
    model, loss = annealing()
    assert problems.train(model, loss=loss, kind="threads", workers=2, updates=4).kind == "threads"


def test_a_penalty_on_the_given_model_is_refused_as_without_it():
    context = Context()
    model = Told(context)

    def loss(replica: nn.Module, batch: Any) -> Tensor:
        own = problems.cross_entropy(replica, batch) + (0.0 if context.last is None else context.last)
        return own + sum((p - q).square().sum() for p, q in zip(replica.parameters(), model.parameters(), strict=True))

    with pytest.raises(hogwild.ArgumentError, match="of the model that was given, by a closure or a global, beside"):
        problems.train(model, loss=loss, kind="auto", workers=1, updates=2)


class Running(Context):
    """Keeps a running mean as well, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.seen, self.names = torch.zeros(()), deque[float](), set[int]()


class Counted(Told):
    def leave(self, value: Tensor) -> None:
        self.context.mean.mul_(0.9).add_(0.1 * value.detach())
        self.context.seen.append(value.item())
        self.context.names.add(len(self.context.seen))
        self.context.last = value + self.context.mean


@pytest.mark.parametrize("kind", ["processes", "auto"])
def test_the_caller_s_own_objects_are_left_as_they_are(kind):
    context, calls = Running(), []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(batch)
        own = problems.cross_entropy(model, batch)
        return own if context.last is None else own + context.last

    run = problems.train(Counted(context), loss=loss, kind=kind, update="hogwild", workers=1, updates=4)
    assert run.kind == "processes" and len(calls) == 1
    assert (context.mean.item(), len(context.seen), len(context.names), context.last) == (0.0, 0, 0, None)


class Part:
    """Of a tree, and knows the tree."""

    def __init__(self, parent: Part | None) -> None:
        self.parent, self.parts = parent, list[Part]()


def test_large_things_in_common_are_walked_once(monkeypatch):
    tree = Part(None)
    parts = [tree]
    for number in range(400):
        parts.append(Part(parts[number // 2]))
        parts[number // 2].parts.append(parts[-1])
    calls = []
    monkeypatch.setattr(kept_by_loss, "holders_of", lambda *given: calls.append(given) or holders_of(*given))
    problems.train(Told(tree), loss=lambda m, b: problems.cross_entropy(m, b) + 0 * len(tree.parts), updates=1)
    assert len(calls) < 30 * len(parts)  # by all looks of all steps together


class OfThisProcess(Context):
    """Holds what no other process can have."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return OfThisProcess()


def test_threads_are_refused_where_it_cannot_be_sent():
    context = OfThisProcess()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = problems.cross_entropy(model, batch)
        return value if context.last is None else value + context.last

    with pytest.raises(hogwild.ArgumentError, match="the model and the loss have one OfThisProcess in common"):
        problems.train(Told(context), loss=loss, kind="threads", updates=2)


class OfAModule(nn.Module):
    """A loss that is a layer, and holds what the model leaves something in."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        own = problems.cross_entropy(model, batch)
        return own if self.context.last is None else own + self.context.last


OF_THE_SCRIPT = Context()


def by_object() -> tuple[nn.Module, Any]:
    """Whose loss is an object of a class of a script, which names a global."""

    class Called:
        def __call__(self, model: nn.Module, batch: Any) -> Tensor:
            own = problems.cross_entropy(model, batch)
            return own if OF_THE_SCRIPT.last is None else own + OF_THE_SCRIPT.last

    return Told(OF_THE_SCRIPT), Called()


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_threads_are_refused_where_the_class_of_the_loss_names_it(update):
    model, loss = by_object()
    with pytest.raises(hogwild.ArgumentError, match="the model and the loss have one Context in common"):
        problems.train(model, loss=loss, kind="threads", update=update, updates=2)
    assert problems.train(model, loss=loss, kind="auto", update=update, updates=2).kind == "processes"


def test_a_loss_that_is_a_layer_has_it_in_common_in_processes():
    context = Context()
    by_hand = Told(context)
    problems.train_serially(by_hand, loss=OfAModule(context), **FIXED)
    context = Context()
    run = problems.train(Told(context), loss=OfAModule(context), kind="auto", workers=2, **FIXED)
    assert run.kind == "processes"
    assert all(torch.equal(value, run.state[key]) for key, value in by_hand.state_dict().items())
