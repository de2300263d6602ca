"""Bad input ends in one line that names the value, the rule it broke and what would work, and changes nothing."""

from __future__ import annotations

import multiprocessing
from functools import partial
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from traits import KINDS

import hogwild
from hogwild import ArgumentError


class Unfinished(nn.Module):
    """No trainable parameters: a buffer, and what is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class NeedsClosure(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any) -> None:
        closure()


def of_another_model(named: Any) -> Optimizer:
    return torch.optim.SGD(OTHER.parameters(), lr=0.1)


X, Y = problems.data()
MODEL, OTHER = problems.mlp(), problems.mlp()

CASES: dict[str, tuple[dict[str, Any], str]] = {
    # what a newcomer may get wrong
    "unknown rule": (
        {"update": "hogwild!"},
        r"update 'hogwild!' is not a rule; did you mean 'hogwild'\? the rules are racing, hogwild, locked, ",
    ),
    "a rule that is not one": ({"update": 3}, "update 3 is not a rule; the rules are "),
    "no workers": ({"workers": 0}, "workers 0 is below 1; 1 or more works"),
    "negative workers": ({"workers": -1}, "workers -1 is below 1; 1 or more works"),
    "half a worker": ({"workers": 1.5}, "workers 1.5 is a float; it must be a whole number"),
    "batch over data": ({"batch_size": 201}, "batch_size 201 is over the 200 samples there are; at most 200 works"),
    "no data": ({"data": (X[:0], Y[:0])}, "data is empty; training needs at least one sample"),
    "an empty list": ({"data": []}, "data is empty; training needs at least one sample"),
    "nothing to train": ({"model": Unfinished()}, "Unfinished has no trainable parameters; set requires_grad on some"),
    "no module": ({"model": "mlp"}, "model is a str; pass a torch.nn.Module"),
    "vector loss": (
        {"loss": lambda m, b: m(b[0]).mean(1)},
        r"loss returned a tensor of shape \[16\]; it must return a scalar tensor \(take \.mean\(\) or \.sum\(\)\)",
    ),
    "NaN at the first step": (
        {"loss": lambda m, b: problems.cross_entropy(m, b) * float("nan")},
        "loss is nan at the first step; scale the data or lower the initial weights",
    ),
    "loss of nothing": (
        {"loss": lambda m, b: torch.zeros(())},
        "loss returned a value that no parameter of the model takes part in",
    ),
    "loss of another model": (
        {"loss": lambda m, b: problems.cross_entropy(MODEL, b)},
        "loss does not depend on any trained parameter of the model it is given; use that model in it",
    ),
    "factory that ignores its argument": (
        {"optimizer": of_another_model},
        "the optimizer factory ignored its argument: SGD .*write lambda named: torch.optim.SGD",
    ),
    "factory that takes the caller's model": (
        {"model": MODEL, "optimizer": lambda named: torch.optim.SGD(MODEL.parameters(), lr=0.1)},
        "the optimizer factory ignored its argument",
    ),
    "no factory": ({"optimizer": lambda named: None}, "optimizer returned a NoneType; it must return a torch.optim"),
    "an optimizer, not a factory": (
        {"model": MODEL, "optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.1)},
        "optimizer is a SGD, .*partial",
    ),
    "the name of an optimizer": ({"optimizer": "sgd"}, "optimizer is a str, .*partial"),
    "a factory that raises": (
        {"optimizer": partial(torch.optim.SGD, lr=-1.0)},
        "optimizer .*ValueError: Invalid learning rate: -1",
    ),
    "both epochs and updates": ({"epochs": 1, "updates": 1}, "both of epochs and updates given; exactly one says how"),
    "neither": ({"updates": None}, "neither of epochs and updates given; exactly one says how long to train"),
    "no updates": ({"updates": 0}, "updates 0 is below 1; 1 or more works"),
    # what DESIGN section 7 refuses
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "LBFGS needs a closure, which no worker can call; use SGD or Adam"),
    "a closure": ({"optimizer": NeedsClosure}, "NeedsClosure needs a closure, which no worker can call"),
    "lazy": ({"model": nn.Sequential(nn.LazyLinear(3))}, "0.weight is lazy and not yet materialised; run one batch"),
    "compiled": ({"model": torch.compile(nn.Linear(8, 3))}, "compiled or scripted .*; pass the module it was made"),
    "another device": (
        {"model": nn.Linear(8, 3, device="meta")},
        r"weight is on meta.*pass model\.cpu\(\)",
    ),
    "data elsewhere": ({"data": (X.to("meta"), Y)}, r"data lies on meta, .*pass data\.cpu\(\)"),
    # what does not fit together
    "too many workers for ordered": (
        {"update": "ordered", "workers": 4},
        r"4 workers are over the 2 that staleness 1 .*set staleness=3 \(it changes the result\) or workers=2",
    ),
    "too many workers for sync": (
        {"update": "sync", "workers": 4},
        r"4 workers are over the 2 micro-batches.*set micro_batches=4 \(it changes the result\) or workers=2",
    ),
    "racing without backward": (
        {"update": "racing", "gradient": "grad"},
        "gradient 'grad' leaves .grad alone, and racing is a race for .grad; it needs 'backward'",
    ),
    "unknown kind": ({"kind": "fork"}, "kind 'fork' is not known; 'auto', 'threads', 'processes' are"),
    "unknown gradient": ({"gradient": "jvp"}, "gradient 'jvp' is not known"),
    "negative staleness": ({"update": "ordered", "staleness": -1}, "staleness -1 is (negative|below 0)"),
    "staleness as text": ({"update": "ordered", "staleness": "3"}, "staleness '3' is a str"),
    "no micro-batches": ({"update": "sync", "micro_batches": 0}, "micro_batches 0 is below 1"),
    "micro-batches as text": ({"update": "sync", "micro_batches": "2"}, "micro_batches '2' is a str"),
    "seed as text": ({"seed": "0"}, "seed '0' is a str; it must be a whole number"),
    "clip as text": ({"clip_grad_norm": "1"}, "clip_grad_norm '1' is a str"),
    "clip to nothing": ({"clip_grad_norm": 0.0}, "clip_grad_norm 0.0 is not above 0"),
    "checkpoints without a place": ({"checkpoint_every": 5}, "checkpoint_every 5 given without out; name a directory"),
    "a schedule that is no function": ({"lr_schedule": 0.5}, "lr_schedule .*float"),
}


def call(arguments: dict[str, Any], kind: str) -> hogwild.Run:
    settings = {"model": problems.mlp(), "data": (X, Y), "loss": problems.cross_entropy, "optimizer": problems.SGD}
    settings |= {"updates": 4, "batch_size": 16, "kind": kind, **arguments}
    return hogwild.train(settings.pop("model"), settings.pop("data"), settings.pop("loss"), **settings)


def snapshot(model: Any) -> list[Any]:
    """Values, places, gradients, hooks and flags of a model: all that a failed run must not have touched."""
    if not isinstance(model, nn.Module):
        return []
    lazy = [p for p in model.parameters() if isinstance(p, nn.parameter.UninitializedParameter) or p.is_meta]
    values = [] if lazy else [(p.data_ptr(), p.detach().clone().numpy().tobytes()) for p in model.parameters()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    hooks = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [values, grads, hooks]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_line_and_changes_nothing(case, kind, tmp_path):
    arguments, message = CASES[case]
    model = arguments.get("model", problems.mlp())
    before, state = snapshot(model), torch.get_rng_state()
    out = tmp_path / "run"
    if "checkpoint_every" not in arguments:
        arguments = {"out": out, **arguments}
    with pytest.raises(ArgumentError, match=message) as caught:
        call({**arguments, "model": model}, arguments.get("kind", kind))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert not out.exists(), "refused before anything is written"


def test_what_cannot_be_sent_to_a_process_is_named_with_what_would_work():
    import threading

    lock = threading.Lock()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with lock:
            return problems.cross_entropy(model, batch)

    message = r"^loss cannot be sent to worker processes: TypeError: .*lock.*; kind='threads' sends nothing$"
    with pytest.raises(ArgumentError, match=message):
        call({"loss": loss}, "processes")
    assert call({"loss": loss}, "threads").updates == 4


def test_a_source_that_cannot_be_copied_is_named():
    import threading

    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def batch(self, update: int, generator: torch.Generator) -> Any:
            return X, Y

    for kind in KINDS:
        with pytest.raises(ArgumentError, match=r"data is a Locked .*lock"):
            call({"data": Locked()}, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_of_the_very_first_update_is_reported(kind, workers):
    """However soon the last worker ends, its failure is heard."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if problems.in_worker_thread() or multiprocessing.parent_process() is not None:
            raise ZeroDivisionError
        return problems.cross_entropy(model, batch)

    with pytest.raises(hogwild.WorkerError, match="ZeroDivisionError at update"):
        call({"loss": loss, "workers": workers}, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_cannot_be_made_is_reported(kind):
    made = []

    def optimizer(named: Any) -> Optimizer:
        made.append(1)
        if len(made) > 1:
            raise KeyError("not twice")
        return torch.optim.SGD(named, lr=0.1)

    with pytest.raises(hogwild.WorkerError, match=r"worker . raised KeyError before its first update"):
        call({"optimizer": optimizer}, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_too_little_memory_is_told_before_any_worker_starts(kind, monkeypatch):
    from hogwild.shared import arena

    monkeypatch.setattr(arena, "memory_limits", lambda: [("limit of this test", 1000)])
    with pytest.raises(ArgumentError, match="MB of shared memory, over the 0 MB left of the limit of this test"):
        call({}, kind)


class GivesOthersToOptimizers(nn.Linear):
    """As a model does that is partly frozen, and gives its `parameters` to an optimizer."""

    def parameters(self, recurse=True):
        return iter([self.weight])


def test_a_model_may_give_others_as_its_parameters():
    torch.manual_seed(0)
    model = GivesOthersToOptimizers(4, 4)
    before = {name: value.clone() for name, value in model.named_parameters()}
    hogwild.train(
        model,
        torch.ones(8, 4),
        lambda model, batch: model(batch).square().mean(),
        updates=3,
        batch_size=4,
        kind="threads",
        optimizer=lambda named: torch.optim.SGD([p for n, p in named if n == "weight"], lr=0.1),
    )
    assert not torch.equal(model.weight, before["weight"]) and torch.equal(model.bias, before["bias"])
