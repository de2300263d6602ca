"""State hidden in user code: where the same bits are promised it is refused before the run, and named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import problems
import pytest
import torch
from hidden import (
    NOT_SEEN,
    SEEN,
    Arguments,
    Stepped,
    Stream,
    baseline_of_the_first_batch,
    counter_in_forward,
    model_with,
    name_of,
    stateful_schedule,
)
from torch import Tensor, nn
from traits import KINDS, OTHER_BITS, SAME_BITS

import hogwild
from hogwild import NotReproducible
from hogwild.data.seeding import DrawDetector, preserved_generators

DOCS = Path(__file__).parents[3] / "docs" / "same-bits.md"


def train(kind: Callable[[], Arguments], /, **arguments: Any) -> hogwild.Run:
    return problems.train(**{"updates": 12, "workers": 1, **kind(), **arguments})


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize(("hidden", "named"), SEEN.items(), ids=name_of)
def test_hidden_state_is_refused_by_name(hidden, named, update):
    with pytest.raises(NotReproducible, match=named) as caught:
        train(hidden, update=update)
    assert "\n" not in str(caught.value)
    assert update in str(caught.value)


@pytest.mark.parametrize("hidden", SEEN, ids=name_of)
def test_it_trains_where_nothing_is_promised(hidden):
    train(hidden, update=OTHER_BITS[-1], updates=4)


@pytest.mark.parametrize("hidden", [counter_in_forward, baseline_of_the_first_batch, stateful_schedule], ids=name_of)
def test_processes_refuse_it_as_threads_do(hidden):
    with pytest.raises(NotReproducible):
        train(hidden, update="ordered", kind="processes")


class Doubled(nn.Linear):
    """A layer that keeps a weight that it computed, and with it the graph of the first loss."""

    @cached_property
    def twice(self) -> Tensor:
        return self.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.twice, self.bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_what_can_be_computed_only_once_is_refused(update, kind):
    with pytest.raises(NotReproducible, match=r"cannot be again \(RuntimeError: Trying to backward") as e:
        train(lambda: {"model": Doubled(8, 3)}, update=update, kind=kind)
    assert "\n" not in str(e.value)


# --- what does not show in the first batches: each is listed in the docs, by these words


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize(("hidden", "words"), NOT_SEEN.items(), ids=name_of)
def test_what_shows_later_is_left_and_listed(hidden, words, update):
    assert train(hidden, update=update).updates == hidden().get("updates", 12)
    assert words in " ".join(DOCS.read_text(encoding="utf-8").split())


# --- what is no hidden state


class Momentum(Stepped):
    """State where it belongs."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["velocity"] = 0.9 * state.get("velocity", 0.0) + parameter.grad
                parameter.sub_(state["velocity"], alpha=0.01)


class InABuffer(nn.Module):
    """A moving average where it belongs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.average = (0.9 * self.average + 0.1 * x.mean()).detach()
        return x * (1 + self.average)


class ByHelper(nn.Module):
    """A layer that is called by what says what is to happen at its end."""

    class Helper:
        def __init__(self, layer: nn.Module) -> None:
            self.layer = layer

        def __del__(self) -> None: ...

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.helper = self.Helper(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.helper.layer(x)


MISSING = object()


class WithMissing(nn.Module):
    """A layer that knows what is missing by what stands in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = [MISSING, 0.5]

    def forward(self, x: Tensor) -> Tensor:
        return x + sum(shift for shift in self.shifts if shift is not MISSING)


def labelled() -> tuple[list[Any], Any]:
    """Samples of which some labels are missing, and what makes a batch of them."""
    rows = [(x, MISSING if i % 3 == 0 else y) for i, (x, y) in enumerate(zip(*problems.data(), strict=True))]

    class Collate:
        def __call__(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
            labels = [-100 if y is MISSING else int(y) for _, y in samples]
            return torch.stack([x for x, _ in samples]), torch.tensor(labels)

    return rows, Collate()


PURE: dict[str, Arguments] = {
    "what stands for what is missing, in samples": dict(zip(("data", "collate"), labelled(), strict=True)),
    "what stands for what is missing, in a layer": {"model": model_with(WithMissing())},
    "batch norm": {"model": problems.conv_bn()},
    "state in a buffer": {"model": model_with(InABuffer())},
    "a helper that has an end": {"model": model_with(ByHelper())},
    "state of an optimizer": {"optimizer": Momentum},
    "a schedule": {"lr_schedule": lambda update: 0.99**update},
    "Adagrad": {"optimizer": partial(torch.optim.Adagrad, initial_accumulator_value=0.1)},
    "the generator of the worker": {
        "loss": lambda m, b: problems.cross_entropy(m, b) * torch.rand((), generator=hogwild.worker_info().generator)
    },
    "the number of the update": {"loss": lambda m, b: problems.cross_entropy(m, b) * hogwild.worker_info().update},
    "a generator of losses": {"loss": lambda m, b: (problems.cross_entropy(m, b) for _ in range(2))},
    "a loss that is not a number": {
        "loss": lambda m, b: problems.cross_entropy(m, b) * (float("nan") if hogwild.worker_info().batch == 1 else 1),
        "on_nonfinite": "skip",
    },
    "a single update": {"updates": 1},
}


@pytest.mark.parametrize(
    ("pure", "update", "kind"),
    [
        (pure, update, KINDS[(number + place) % len(KINDS)])
        for number, pure in enumerate(PURE)
        for place, update in enumerate(SAME_BITS)
    ],
)
def test_nothing_is_refused_that_is_pure(pure, update, kind):
    """By each rule and in each kind of workers: the second look is had before either begins."""
    assert problems.train(**{"updates": 4, **PURE[pure]}, update=update, kind=kind).updates > 0


@pytest.mark.parametrize("update", SAME_BITS)
def test_dropout_in_processes_is_no_hidden_state(update):
    assert problems.train(problems.dropout(), update=update, kind="processes", updates=4).updates == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize("by", ["a generator", "its own generator", "the update"])
def test_an_optimizer_that_draws_or_knows_its_worker_is_refused(by, update, kind):
    """Whoever has nothing better to do steps: with the generators, and at the update, of another batch."""

    class Uneven(Stepped):
        def size(self) -> float:
            info = hogwild.worker_info()
            if by == "a generator":
                return 0.1 * (1 + torch.rand(()).item())
            if by == "its own generator":
                return 0.1 * (1 + (torch.rand((), generator=info.generator).item() if info is not None else 0))
            return 0.1 * (1 + (info.update % 7 if info is not None else 0))

    with preserved_generators(), pytest.raises(NotReproducible, match="Uneven"):
        problems.train(optimizer=Uneven, update=update, kind=kind, updates=4)


def test_what_cannot_be_pickled_is_looked_at_all_the_same():
    import threading

    lock, calls = threading.Lock(), []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with lock:
            calls.append(1)
        return problems.cross_entropy(model, batch) * len(calls)

    assert problems.train(loss=lambda m, b: problems.cross_entropy(m, b) if lock else None, update="ordered").updates
    with pytest.raises(NotReproducible, match="loss"):
        problems.train(loss=loss, update="ordered")


def test_it_leaves_classes_as_they_are():
    """Those of a script or notebook, too, which a worker process gets by value."""
    calls: list[int] = []

    class Local(nn.Linear):
        made: list[int] = []  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    made, forward = Local.made, Local.forward
    problems.train(Local(8, 3), update="ordered", compensation="none", updates=4, workers=1)
    assert Local.made is made and Local.forward is forward
    assert len(calls) == 1 + 5 + 4, "the trial step, five gradients to compare, the run"


def test_it_leaves_everything_as_it_was():
    model = model_with(nn.BatchNorm1d(8))
    big = torch.zeros(1 << 17)
    model.register_buffer("big", big.clone())
    before = hogwild.digest(model)
    source = Stream()
    with preserved_generators():
        detector = DrawDetector()
        with pytest.raises(NotReproducible):
            problems.train(model, data=source, update="ordered")
        assert detector.drawn() == []
    assert hogwild.digest(model) == before and source.calls == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hogwild.worker_info() is None


def test_what_raises_at_a_later_batch_is_told_by_the_run():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().batch == 1:
            raise ValueError("batch 1 is broken")
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.WorkerError, match="batch 1 is broken") as caught:
        problems.train(loss=loss, update="ordered")
    assert caught.value.update == 1
