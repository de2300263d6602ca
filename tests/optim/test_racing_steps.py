"""No step of an adaptive optimizer is larger than it could be serially, whatever other workers write meanwhile.

Another worker is planted between any two operations of a commit: it writes the shared moments as a worker may that
read them a while ago. What torch reads back from there is then small under a large gradient, and its step is large.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hogwild
from hogwild.optim import plan as optimizer_plan
from hogwild.rules.registry import names_where, rule_class

RATE, SIZE, ROWS = 0.01, 24, 6
ADAM = 7.271  # (1 - β1) / sqrt((1 - β2) (1 - β1² / β2)), by Cauchy and Schwarz
BOUNDS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "adam": (partial(torch.optim.Adam, lr=RATE), ADAM * RATE),
    "adam with decay": (partial(torch.optim.Adam, lr=RATE, weight_decay=0.01), ADAM * RATE),
    "adamw": (partial(torch.optim.AdamW, lr=RATE, weight_decay=0.0), ADAM * RATE),
    "adagrad": (partial(torch.optim.Adagrad, lr=RATE), RATE),
    "rmsprop": (partial(torch.optim.RMSprop, lr=RATE), RATE / 0.1),
    "rmsprop with momentum": (partial(torch.optim.RMSprop, lr=RATE, momentum=0.5), 2 * RATE / 0.1),
    "sparse adam": (partial(torch.optim.SparseAdam, lr=RATE), ADAM * RATE),
    "sparse adagrad": (partial(torch.optim.Adagrad, lr=RATE), RATE),
}
UPDATES = 60


class Weights(nn.Module):
    """Its gradients are the data: dense, or sparse in two of the rows."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, SIZE // ROWS, sparse=sparse)
        nn.init.zeros_(self.table.weight)
        self.sparse = sparse

    def forward(self, values: Tensor, rows: Tensor) -> Tensor:
        values = values.reshape(ROWS, -1)
        return (self.table(rows) * values[rows]).sum() if self.sparse else (self.table.weight * values).sum()


def gradients() -> tuple[Tensor, Tensor]:
    """From 1e-6 to 1e6, and zero where the sample before was large; with the rows that a sparse one reaches."""
    generator = torch.Generator().manual_seed(3)
    size = torch.pow(10.0, torch.randint(-6, 7, (UPDATES, SIZE), generator=generator).float())
    size[1::2][torch.rand(UPDATES // 2, SIZE, generator=generator) < 0.3] = 0.0
    sign = torch.randint(0, 2, (UPDATES, SIZE), generator=generator) * 2.0 - 1.0
    return size * sign, torch.randint(ROWS, (UPDATES, 2), generator=generator)


def loss(model: nn.Module, batch: Any) -> Tensor:
    values, rows = batch
    return model(values[0], rows[0])


def moments(shared: Any) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in shared.tensors[0].items() if tensor.numel() > 1}


def wipe(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """As one that has read zeros, before the first step."""
    for tensor in now.values():
        tensor.zero_()


def wipe_squares(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """As one that has written the squares, and not yet the mean."""
    for key in {"exp_avg_sq", "sum", "square_avg"} & set(now):
        now[key].zero_()


def put_back(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """As one that has read what was there before this step, and had a gradient of zero."""
    for key, tensor in now.items():
        tensor.copy_(before[key])


INTRUDERS = [wipe, wipe_squares, put_back]


class Intruder(TorchDispatchMode):
    """Writes after operations number `first`, `first` + `every`, …"""

    def __init__(self, now: dict[str, Tensor], write: Any, first: int, every: int) -> None:
        super().__init__()
        self.now = now
        self.before = {key: tensor.clone() for key, tensor in self.now.items()}
        self.write, self.left, self.every = write, first, every

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if self.left == 0:
            self.write(self.now, self.before)
            self.left = self.every
        self.left -= 1
        return made


def largest_step(name: str, write: Any, update: str = "hogwild") -> float:
    """Of a run in which somebody writes after every operation, at first, and later after one more at each commit."""
    sizes: list[float] = []

    one_at_a_time = threading.Lock()  # but for the one that is planted

    class Beset(rule_class(update)):  # type: ignore[misc]
        def commit(self, ticket: Any, gradient: Any) -> bool:
            shared, table = self.state.optimizer_states[0], self.state.slots[0].parameters[0]
            now = moments(shared) | dict(
                zip(["gradient"], (slot.tensors[0] for slot in self.state.gradients), strict=False)
            )
            every = 1 if ticket.update < UPDATES // 3 else 1000
            with one_at_a_time:
                before = table.clone()
                with Intruder(now, write, 0 if every == 1 else ticket.update % 20, every):
                    done = super().commit(ticket, gradient)
                sizes.append((table - before).abs().max().nan_to_num(torch.inf).item())
                table.nan_to_num_(0, 0, 0)
            return bool(done)

    hogwild.train(
        Weights(name.startswith("sparse")),
        gradients(),
        loss,
        optimizer=BOUNDS[name][0],
        update=Beset(),
        workers=2,
        kind="threads",
        updates=UPDATES,
        batch_size=1,
        shuffle=False,
        on_nonfinite="ignore",
    )
    assert len(sizes) == UPDATES
    return max(sizes)


@pytest.mark.parametrize("write", INTRUDERS)
@pytest.mark.parametrize("name", BOUNDS)
def test_no_step_is_larger_than_it_could_be_serially(name, write):
    assert largest_step(name, write) <= 1.01 * BOUNDS[name][1]


def add_gradients(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """As others that add theirs to the shared ones, each larger than the last."""
    now["gradient"].abs_().add_(1).mul_(10).clamp_(max=1e10)


@pytest.mark.parametrize("name", [name for name in BOUNDS if not name.startswith("sparse")])
def test_where_gradients_are_shared_too(name):
    (update,) = names_where(lambda rule: rule.shares_gradients)
    assert largest_step(name, add_gradients, update) <= 1.01 * BOUNDS[name][1]


def test_without_a_copy_of_the_shared_gradient_they_are_larger(monkeypatch):
    monkeypatch.setattr(optimizer_plan, "_ADAPTIVE", ())
    (update,) = names_where(lambda rule: rule.shares_gradients)
    assert largest_step("adagrad", add_gradients, update) > 10 * BOUNDS["adagrad"][1]


@pytest.mark.filterwarnings("ignore:.*can make a step of any size:UserWarning")
@pytest.mark.parametrize("name", BOUNDS)
def test_torchs_own_order_of_operations_takes_larger_ones(name, monkeypatch):
    """So the other worker does what it is planted for."""
    monkeypatch.setattr(optimizer_plan, "written_step", lambda optimizer: None)
    assert max(largest_step(name, write) for write in INTRUDERS) > 10 * BOUNDS[name][1]
