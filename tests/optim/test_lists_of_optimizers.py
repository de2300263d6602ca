"""Several optimizers of one model: the plain loop's bits, whoever steps, and parameters that have one each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import problems
import pytest
import torch
from optimizers import UPDATES, everything, everything_loss, plain, trained
from sharing import Lays, SharesAll
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer
from traits import KINDS, ONE_OF_EACH, SAME_BITS

import hogwild
from hogwild.optim.sharded import ShardedStep
from hogwild.report.run_words import optimizer_in_words
from hogwild.shared.shards import cut_shards


class Sign(Optimizer):
    """One of somebody's own, which keeps a count."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0.0) + 1.0
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"] / state["count"])


def _split(named: Any, of_the_first: Callable[[str, nn.Parameter], bool]) -> tuple[list[Any], list[Any]]:
    first = [parameter for name, parameter in named if of_the_first(name, parameter)]
    kept = {id(parameter) for parameter in first}
    return first, [parameter for _, parameter in named if id(parameter) not in kept]


def sgd_and_adam(named: Any) -> list[Optimizer]:
    first, rest = _split(named, lambda name, _: name.startswith(("first", "last")))
    return [SGD(first, lr=0.05, momentum=0.9), AdamW(rest, lr=0.01)]


def groups(named: Any) -> list[Optimizer]:
    first, rest = _split(named, lambda name, _: name.startswith("first"))
    return [Adam([{"params": first[:1], "lr": 0.02}, {"params": first[1:]}], lr=0.01), SGD(rest, lr=0.1)]


def muon(named: Any) -> list[Optimizer]:
    matrices, rest = _split(named, lambda _, parameter: parameter.dim() == 2 and parameter.numel() > 0)
    return [Muon(matrices, lr=0.02), AdamW(rest, lr=0.01)]


def own(named: Any) -> tuple[Optimizer, ...]:
    matrices, rest = _split(named, lambda _, parameter: parameter.dim() == 2)
    vectors, rest = _split([("", one) for one in rest], lambda _, parameter: parameter.dim() == 1)
    return Sign(matrices), SGD(vectors, lr=0.1), Adagrad(rest, lr=0.1)


@torch.no_grad()
def _clamp(optimizer: Optimizer, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.requires_grad:
            parameter.clamp_(-0.2, 0.2)


def hooked(named: Any) -> list[Optimizer]:
    made = sgd_and_adam(named)
    made[0].register_step_post_hook(_clamp)
    return made


MADE = {"SGD and AdamW": sgd_and_adam, "groups": groups, "Muon and AdamW": muon, "own": own, "hooked": hooked}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_one_worker_leaves_the_bits_of_the_plain_loop(name: str, update: str) -> None:
    expected = plain(everything(), MADE[name], everything_loss)
    assert trained(everything(), MADE[name], loss=everything_loss, update=update) == expected
    assert expected not in {plain(everything(), one, everything_loss) for one in MADE.values() if one != MADE[name]}


def test_the_plain_loop_is_each_after_the_other() -> None:
    model, (x, y) = everything(), problems.data()
    made, schedule = muon(list(model.named_parameters())), hogwild.Schedule(len(x), 16)
    for update in range(UPDATES):
        rows = schedule.indices(update)
        everything_loss(model, (x[rows], y[rows])).backward()
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    assert hogwild.digest(model) == plain(everything(), muon, everything_loss)


class Shrinking(Sign):
    """Goes through all the state that it has."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for parameter in self.state:
            parameter.mul_(0.9)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_each_sees_its_own_state_alone(update: str) -> None:
    def optimizers(named: Any) -> list[Optimizer]:
        parameters = [parameter for _, parameter in named]
        return [SGD(parameters[:2], lr=0.1, momentum=0.9), Shrinking(parameters[2:])]

    model, (x, y), updates = problems.mlp(), problems.data(), 10
    made, schedule = optimizers(list(model.named_parameters())), hogwild.Schedule(len(x), 16)
    for number in range(updates):
        rows = schedule.indices(number)
        problems.cross_entropy(model, (x[rows], y[rows])).backward()
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    settings = {"workers": 1, "staleness": 0, "update": update, "updates": updates}
    assert problems.train(optimizer=optimizers, **settings).digest == hogwild.digest(model)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("update", SAME_BITS)
def test_several_workers_leave_the_bits_of_one(name: str, update: str) -> None:
    settings = {"loss": everything_loss, "update": update, "staleness": 2, "micro_batches": 3}
    digests = {
        trained(everything(), MADE[name], **settings | {"workers": workers, "kind": kind})
        for workers, kind in ((1, "threads"), *((3, kind) for kind in KINDS))
    }
    assert len(digests) == 1


@pytest.mark.parametrize("update", SAME_BITS)
def test_shards_are_stepped_to_the_same_bits(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(named: Any) -> list[Optimizer]:
        parameters = [parameter for _, parameter in named]
        return [SGD(parameters[:2], lr=0.05, momentum=0.9), Adam(parameters[2:], lr=0.01)]

    monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=40))
    advance, stepped = ShardedStep.advance, []
    monkeypatch.setattr(ShardedStep, "advance", lambda step, *rest: stepped.append(1) or advance(step, *rest))
    settings = {"staleness": 2, "micro_batches": 3, "updates": 24}
    rule = {"ordered": Lays(2), "sync": SharesAll(3)}[update]  # whose gradients wait, so that others make the version
    digests = {trained(problems.mlp(), both, workers=workers, update=rule, **settings) for workers in (1, 2)}
    assert digests == {plain(problems.mlp(), both, update=update, **settings)} and stepped


# --- what they are set to, and what is remembered of them


def test_rates_change_in_all_of_them() -> None:
    def schedule(update: int) -> float:
        return 1 / (update + 1)

    arguments = {"loss": everything_loss, "lr_schedule": schedule}
    expected = plain(everything(), groups, **arguments)
    assert trained(everything(), groups, update="ordered", **arguments) == expected
    lambdas = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=schedule)
    assert trained(everything(), groups, update="ordered", **arguments | {"lr_schedule": lambdas}) == expected


def test_a_run_goes_on_with_the_same_ones_alone(tmp_path: Any) -> None:
    def train(optimizer: Any, **arguments: Any) -> hogwild.Run:
        settings = {"loss": everything_loss, "update": "ordered", "updates": UPDATES}
        return problems.train(everything(), optimizer=optimizer, **settings | arguments)

    whole = train(sgd_and_adam).digest
    with pytest.raises(KeyboardInterrupt):
        train(sgd_and_adam, out=tmp_path, evaluate=problems.interrupting(2), evaluate_every=6)
    told = json.loads((tmp_path / "origin.json").read_text())["training"]["optimizer"]
    assert told["class"] == "torch.optim.sgd.SGD + torch.optim.adamw.AdamW"
    assert [group["lr"] for group in told["groups"]] == [0.05, 0.01]
    with pytest.raises(hogwild.ArgumentError, match=r"optimizer is 'torch\.optim\.adamw\.AdamW \+"):
        train(lambda named: sgd_and_adam(named)[::-1], resume=tmp_path)
    assert train(sgd_and_adam, out=tmp_path, resume=tmp_path).digest == whole
    parts = {"model": everything(), "data": problems.data(), "loss": everything_loss}
    assert hogwild.replay(tmp_path, **parts, optimizer=sgd_and_adam).equal


def test_a_saved_run_tells_all_of_them_and_all_their_rates(tmp_path: Any) -> None:
    run = problems.train(everything(), optimizer=sgd_and_adam, loss=everything_loss, updates=2, out=tmp_path)
    assert optimizer_in_words(run) == "SGD + AdamW, lr 0.05, 0.01"
    assert run.summary()["optimizer"] == "SGD + AdamW"


def test_an_optimizer_alone_in_a_list_is_itself() -> None:
    alone = trained(everything(), lambda named: [SGD(named, lr=0.1)], loss=everything_loss)
    assert alone == trained(everything(), partial(SGD, lr=0.1), loss=everything_loss)


class Turning:
    """Gives who steps what the other way round from its third call on, as the second worker."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, named: Any) -> list[Optimizer]:
        self.calls += 1
        return self.divided([parameter for _, parameter in named], turned=self.calls > 2)

    def divided(self, parameters: list[nn.Parameter], *, turned: bool) -> list[Optimizer]:
        return [SGD(parameters[turned::2], lr=0.1, foreach=True), SGD(parameters[not turned :: 2], lr=0.01)]


class Moving(Turning):
    """Gives one group to the other optimizer: the numbers of all groups stay."""

    def divided(self, parameters: list[nn.Parameter], *, turned: bool) -> list[Optimizer]:
        first, second, third = ({"params": some} for some in (parameters[:2], parameters[2:3], parameters[3:]))
        options = {"lr": 0.05, "weight_decay": 0.1, "foreach": True}
        ours = [first] if turned else [first, second]
        return [Adam(ours, **options), AdamW([second, third] if turned else [third], **options)]


@pytest.mark.filterwarnings("ignore:a step of Adam and AdamW")
@pytest.mark.parametrize("factory", [Turning, Moving])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_worker_whose_factory_divides_the_parameters_otherwise_is_refused(update: str, factory: Any) -> None:
    with pytest.raises(hogwild.ArgumentError, match="puts parameters into other groups, or gives them to another"):
        problems.train(optimizer=factory(), update=update)


class Replacing(Sign):
    """Makes its groups anew at every step, with a count in them."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.param_groups = [{**group, "k": group.get("k", 0) + 1} for group in self.param_groups]


@pytest.mark.parametrize("alone", [True, False])
def test_groups_that_a_step_makes_anew_are_looked_at(alone: bool) -> None:
    def optimizers(named: Any) -> Any:
        parameters = [parameter for _, parameter in named]
        return Replacing(parameters) if alone else [SGD(parameters[:2], lr=0.1), Replacing(parameters[2:])]

    with pytest.raises(hogwild.ArgumentError, match=r"^Replacing keeps state in its parameter groups \(k\)"):
        problems.train(optimizer=optimizers)


class Counting(Sign):
    """Keeps its count in a group, from the second step on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            counts = [self.state[parameter].get("count", 0.0) for parameter in group["params"]]
            group["lr"] /= max(1.0, *counts)


def test_a_hook_on_one_allows_no_other_state_in_its_groups() -> None:
    def optimizers(named: Any) -> list[Optimizer]:
        parameters = [parameter for _, parameter in named]
        made = [SGD(parameters[:2], lr=0.1), Counting(parameters[2:])]
        made[0].register_step_post_hook(lambda *_: None)
        return made

    with pytest.raises(hogwild.ArgumentError, match="^Counting keeps state in its parameter groups"):
        problems.train(optimizer=optimizers)


def test_who_has_no_rate_is_named() -> None:
    class Still(Sign):
        def __init__(self, params: Any) -> None:
            super(Sign, self).__init__(params, {})

    def optimizers(named: Any) -> list[Optimizer]:
        parameters = [parameter for _, parameter in named]
        return [SGD(parameters[:2], lr=0.1), Still(parameters[2:])]

    with pytest.raises(hogwild.ArgumentError, match="^lr_schedule given, and Still has no lr in its groups"):
        problems.train(optimizer=optimizers, lr_schedule=lambda update: 1.0)


def _twice(named: Any) -> list[Optimizer]:
    parameters = [parameter for _, parameter in named]
    return [SGD(parameters[:2], lr=0.1), Adam(parameters[1:], lr=0.1)]


REFUSED = {
    "shared": (_twice, r"^more than one of SGD and Adam holds 0\.bias; let one of them step it$"),
    "empty": (
        lambda named: [],
        r"^optimizer returned a list; it must return a torch\.optim\.Optimizer, .*a list of them$",
    ),
    "of matrices alone": (
        partial(Muon, lr=0.1),
        r"only supports 2D .* \(a list of optimizers may have another one for the rest, as \[Muon\(matrices\), AdamW",
    ),
    "nothing held": (
        lambda named: [SGD(named, lr=0.1), Adam([{"params": []}])],
        "^Adam holds no parameters; give it some, or leave it out$",
    ),
    "other things": (lambda named: [SGD(named, lr=0.1), None], "^optimizer returned a list with a NoneType in it; it"),
    "others' parameters": (
        lambda named: [SGD(named, lr=0.1), Adam([nn.Parameter(torch.zeros(1))])],
        "ignored its argument: Adam holds parameters it was not given",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stepped_is_refused(name: str) -> None:
    optimizer, message = REFUSED[name]
    with pytest.raises(hogwild.ArgumentError, match=message):
        problems.train(optimizer=optimizer)


def test_what_is_left_out_is_told() -> None:
    def some(named: Any) -> list[Optimizer]:
        parameters = [parameter for _, parameter in named]
        return [SGD(parameters[:1], lr=0.1), Adam(parameters[2:], lr=0.1)]

    with pytest.warns(UserWarning, match=r"^not trained, for none of SGD and Adam holds it: 0\.bias$"):
        problems.train(optimizer=some)
    bias = problems.mlp()
    bias[0].bias.requires_grad_(False)
    problems.train(bias, optimizer=some)  # who says so is told nothing
