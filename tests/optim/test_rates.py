"""A scheduler of torch as `lr_schedule`: the bits of torch's own loop; what is no function of the number is refused."""

from __future__ import annotations

import json
import pickle
import warnings
from functools import partial
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from traits import KINDS, NAMES, SAME_BITS

import hogwild

UPDATES = 30


def one_element() -> bool:
    parameter = torch.ones(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    try:
        torch.optim.SGD([parameter], lr=torch.tensor([0.01])).step()
    except TypeError:
        return False
    return True


ONE_ELEMENT = pytest.mark.skipif(not one_element(), reason="SGD of this torch takes no rate of a dimension")


def grouped(named: Any) -> torch.optim.Optimizer:
    """Two groups with rates of their own."""
    first, *others = (parameter for _, parameter in named)
    return torch.optim.Adam([{"params": others}, {"params": [first], "lr": 0.03}], lr=0.01)


def warm_up(optimizer: torch.optim.Optimizer) -> LRScheduler:
    first, second = LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, 20)
    return SequentialLR(optimizer, [first, second], [5])


def chained(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ChainedScheduler([ConstantLR(optimizer, 0.5, 4), ExponentialLR(optimizer, 0.9)], optimizer)


SCHEDULERS: dict[str, Any] = {
    "cosine": partial(CosineAnnealingLR, T_max=25, eta_min=0.001),
    "restarts": partial(CosineAnnealingWarmRestarts, T_0=7),
    "steps": partial(StepLR, step_size=6, gamma=0.3),
    "milestones": partial(MultiStepLR, milestones=[3, 9]),
    "exponential": partial(partial(ExponentialLR), gamma=0.95),
    "linear": LinearLR,
    "polynomial": partial(PolynomialLR, total_iters=20, power=2.0),
    "lambda": partial(LambdaLR, lr_lambda=lambda update: 1 / (1 + update)),
    "multiplied": partial(MultiplicativeLR, lr_lambda=lambda update: 0.97),
    "one cycle": partial(OneCycleLR, max_lr=0.1, total_steps=UPDATES, cycle_momentum=False),
    "cyclic": partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=6, cycle_momentum=False),
    "warm-up": hogwild.scheduler(warm_up),
    "chained": hogwild.scheduler(chained),
}
LAMBDAS = partial(LambdaLR, lr_lambda=[lambda update: 1 / (1 + update), lambda update: 1.0])


def by_hand(optimizer: Any, scheduler: Any, make: Any = problems.mlp) -> str:
    """Torch's own loop."""
    (x, y), model, order = problems.data(), make(), hogwild.Schedule(200, 16)
    stepper = optimizer(list(model.named_parameters()))
    make_scheduler = getattr(scheduler, "make", scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = make_scheduler(stepper)
        for number in range(UPDATES):
            rows = order.indices(number)
            stepper.zero_grad()
            problems.cross_entropy(model, (x[rows], y[rows])).backward()
            stepper.step()
            schedule.step()
    return hogwild.digest(model)


def train(scheduler: Any, **arguments: Any) -> hogwild.Run:
    settings = {"update": "ordered", "staleness": 0, "workers": 1, "updates": UPDATES, "optimizer": problems.MOMENTUM}
    return problems.train(lr_schedule=scheduler, **(settings | arguments))


@pytest.mark.filterwarnings("ignore:Please also save")  # CyclicLR and LambdaLR of state dicts, which nobody saves
@pytest.mark.parametrize("optimizer", [problems.MOMENTUM, grouped], ids=["momentum", "two groups of adam"])
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_the_bits_of_torchs_own_loop(scheduler, optimizer):
    expected = by_hand(optimizer, scheduler)
    assert train(scheduler, optimizer=optimizer).digest == expected
    assert train(scheduler, optimizer=optimizer, update="hogwild").digest == expected
    assert expected != by_hand(optimizer, partial(ConstantLR, factor=1.0))


def test_groups_may_have_factors_of_their_own():
    assert train(LAMBDAS, optimizer=grouped).digest == by_hand(grouped, LAMBDAS)


def test_under_compensation_rates_are_scaled_as_they_are_without():
    settings = {"staleness": 2, "compensation": "auto", "workers": 2}
    factor = train(lambda update: 0.5 if update < 4 else 1.0, **settings)
    assert train(partial(ConstantLR, factor=0.5, total_iters=4), **settings).digest == factor.digest


def test_a_rate_that_is_a_tensor():
    optimizer = partial(torch.optim.SGD, lr=torch.tensor(0.05, dtype=torch.float64))
    plain = partial(torch.optim.SGD, lr=0.05)
    scheduler = SCHEDULERS["cosine"]
    assert train(scheduler, optimizer=optimizer).digest == by_hand(plain, scheduler)
    assert optimizer.keywords["lr"] == 0.05


@pytest.mark.filterwarnings("ignore:Please also save")
@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(torch.tensor(0.01), id="no dimension"),
        pytest.param(torch.tensor([0.01]), id="one element", marks=ONE_ELEMENT),
    ],
)
@pytest.mark.parametrize(("number", "scheduler"), [*enumerate(SCHEDULERS.values())], ids=SCHEDULERS)
def test_a_rate_that_is_a_tensor_stays_one_of_its_dtype(scheduler, number, rate):
    """Of both optimizers with each scheduler, and with each shape."""
    kind = (torch.optim.SGD, torch.optim.Adam)[(number + rate.dim()) % 2]

    def optimizer(named: Any) -> torch.optim.Optimizer:
        return kind(named, lr=rate.clone())

    expected = by_hand(optimizer, scheduler)
    assert train(scheduler, optimizer=optimizer).digest == expected
    assert train(scheduler, optimizer=optimizer, update="hogwild").digest == expected


@pytest.mark.parametrize("factor", [float, partial(torch.tensor, dtype=torch.float64)])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_rate_that_is_a_tensor_times_a_factor(kind, factor):
    def optimizer(named: Any) -> torch.optim.Optimizer:
        return kind(named, lr=torch.tensor(0.01))

    def schedule(update: int) -> Any:
        return factor(1 / (1 + 0.3 * update))

    assert train(schedule, optimizer=optimizer).digest == by_hand(optimizer, partial(LambdaLR, lr_lambda=schedule))


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("shape", [(), pytest.param((1,), marks=ONE_ELEMENT), pytest.param((1, 1), marks=ONE_ELEMENT)])
@pytest.mark.parametrize("optimizer", [problems.MOMENTUM, grouped], ids=["momentum", "two groups of adam"])
def test_a_factor_may_be_a_tensor_of_one_element(optimizer, shape, staleness):
    def schedule(update: int) -> Tensor:
        return torch.full(shape, 1 / (1 + 0.3 * update))

    settings = {"optimizer": optimizer, "staleness": staleness, "workers": staleness + 1}
    run = train(schedule, **settings)
    assert run.digest == train(lambda update: schedule(update).reshape(()), **settings).digest
    if not staleness:
        assert run.digest == by_hand(optimizer, partial(LambdaLR, lr_lambda=schedule))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_every_rule_and_kind(update, kind):
    settings = {"update": update, "kind": kind, "staleness": 1, "micro_batches": 2}
    runs = [train(SCHEDULERS["warm-up"], workers=workers, **settings) for workers in (1, 2)]
    assert all(run.updates == UPDATES for run in runs)
    if update in SAME_BITS:
        assert runs[0].digest == runs[1].digest != train(LinearLR, **settings).digest


def test_a_loop_of_ones_own():
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            replica, (x, y) = worker.read(ticket), problems.data()
            rows = hogwild.Schedule(200, 16).indices(ticket.batch)
            loss = problems.cross_entropy(replica, (x[rows], y[rows]))
            worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())), float(loss.detach()))

    scheduler = SCHEDULERS["cosine"]
    settings = {"optimizer": problems.MOMENTUM, "updates": UPDATES, "workers": 1, "kind": "threads"}
    run = hogwild.launch(work, problems.mlp(), lr_schedule=scheduler, **settings)
    assert run.digest == by_hand(problems.MOMENTUM, scheduler)


def test_it_is_recorded_resumed_and_replayed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(SCHEDULERS["warm-up"], out=tmp_path, evaluate=problems.interrupting(2), evaluate_every=6)
    told = json.loads((tmp_path / "origin.json").read_text())["training"]["lr_schedule"]
    assert told["name"] == "SequentialLR" and told["factors"]["0"] == [0.05 * 0.1]
    with pytest.raises(hogwild.ArgumentError, match="lr_schedule at update 0 is"):
        train(SCHEDULERS["cosine"], resume=tmp_path)
    with pytest.raises(hogwild.ArgumentError, match="lr cannot be changed: SequentialLR sets it"):
        train(SCHEDULERS["warm-up"], resume=tmp_path, change={"lr": 0.1})
    run = train(SCHEDULERS["warm-up"], out=tmp_path, resume=tmp_path)
    assert run.digest == by_hand(problems.MOMENTUM, SCHEDULERS["warm-up"])
    parts = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
    assert hogwild.replay(tmp_path, **parts, optimizer=problems.MOMENTUM, lr_schedule=SCHEDULERS["warm-up"]).equal


class Moody(LRScheduler):
    """Raises late, or sets what it should not."""

    def __init__(self, optimizer: torch.optim.Optimizer, mood: str) -> None:
        self.mood = mood
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        late = self.last_epoch == UPDATES - 1
        if late and self.mood == "raises":
            raise RuntimeError("not today")
        if late and self.mood == "decays":
            self.optimizer.param_groups[0]["weight_decay"] = 0.5
        return [float("nan") if late and self.mood == "is not a number" else 1.0 for _ in self.optimizer.param_groups]


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return ReduceLROnPlateau(optimizer)


REFUSED = [
    (ReduceLROnPlateau, "makes a ReduceLROnPlateau, which looks at how the run goes; a rate must depend on the number"),
    (hogwild.scheduler(plateau), "makes a ReduceLROnPlateau"),
    (
        partial(OneCycleLR, max_lr=1, total_steps=99),
        "OneCycleLR, changes momentum from 0.9 to 0.95.*cycle_momentum=Fal",
    ),
    (
        partial(OneCycleLR, max_lr=1, total_steps=9, cycle_momentum=False),
        "OneCycleLR, raised ValueError at update 10 of",
    ),
    (
        hogwild.scheduler(lambda optimizer: OneCycleLR(torch.optim.Adagrad(optimizer.param_groups), 1, 30)),
        r"makes no scheduler: ValueError: optimizer must support momentum.*; .*, cycle_momentum=False\)$",
    ),
    (partial(StepLR, size=2), "lr_schedule makes no scheduler: TypeError: .*'size'"),
    (StepLR, r"makes no scheduler: TypeError: StepLR.*'step_size'; .*as in partial\(StepLR, step_size=100\)"),
    (partial(Moody, mood="raises"), "Moody, raised RuntimeError at update 29 of 30: not today"),
    (partial(Moody, mood="decays"), "Moody, changes weight_decay from 0 to 0.5"),
    (partial(Moody, mood="is not a number"), "Moody, sets lr nan at update 29; it must be finite"),
    (hogwild.scheduler(lambda optimizer: 3), "made an int; hogwild.scheduler takes a function of an optimizer"),
    (LAMBDAS, "lr_schedule makes no scheduler: ValueError: .*1 lr_lambdas"),
    (warm_up, "lr_schedule raised .*marked by hogwild.scheduler"),
    (CosineAnnealingLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1), 5), "is a CosineAnnealingLR of an optim"),
    (7, "lr_schedule is an int, 7; pass a function"),
]


@pytest.mark.parametrize(("scheduler", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_cannot_be_a_table_is_refused_by_name(scheduler, message):
    with pytest.raises(hogwild.ArgumentError, match=message) as caught:
        train(scheduler)
    assert "\n" not in str(caught.value)


def test_what_is_marked_can_be_sent():
    again = pickle.loads(pickle.dumps(hogwild.scheduler(warm_up)))
    assert train(again).digest == by_hand(problems.MOMENTUM, again)
