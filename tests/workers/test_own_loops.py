"""Mistakes in a loop of one's own: a ticket that is not its own, a gradient of another form, nothing done at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import EVERY, INPUT, TARGET, gradients, launched, squared, trained
from torch import Tensor, nn
from traits import KINDS, OTHER_BITS, SAME_BITS

import hogwild

# --- tickets


def commits_twice(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        own = gradients(worker.read(ticket))
        worker.commit(ticket, *own)
        worker.commit(ticket, *own)


def commits_the_one_before(worker: hogwild.Worker) -> None:
    before = None
    while (ticket := worker.claim()) is not None:
        worker.commit(before or ticket, *gradients(worker.read(ticket)))
        before = ticket


def commits_unread(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.replica))


def reads_another(worker: hogwild.Worker) -> None:
    before = None
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.read(before or ticket)))
        before = ticket


@EVERY
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("work", "message"),
    [
        (commits_twice, r"ticket 0 was committed by worker 0, which has none; commit what claim\(\) gave, once"),
        (commits_the_one_before, r"ticket 0 was committed by worker 0, which has ticket 1"),
        (commits_unread, r"ticket 0 was committed before it was read"),
        (reads_another, r"ticket 1 was committed after ticket 0 was read"),
    ],
)
def test_a_ticket_is_committed_once_by_who_has_it_and_has_read_it(
    work: Callable[[Any], None], message: str, update: str, kind: str
) -> None:
    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(work, update=update, kind=kind)


@pytest.mark.parametrize("call", ["read", "commit"])
def test_a_call_without_a_ticket_ends_the_run_in_one_line(call: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while worker.claim() is not None:
            getattr(worker, call)()

    with pytest.raises(hogwild.ArgumentError, match=r"^no ticket given; pass what claim\(\) gave: read\(ticket\), com"):
        launched(work)


def test_what_is_no_ticket_is_named_by_its_class_and_not_printed() -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(gradients(worker.read(ticket))[0])

    with pytest.raises(hogwild.ArgumentError, match=r"^ticket is a list; pass what claim\(\) gave, as it is$"):
        launched(work)


def test_the_speed_of_a_loop_is_told_in_tickets(tmp_path: Path) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, *gradients(worker.read(ticket)))

    run = launched(work, out=tmp_path / "run")
    for told in (str(run), str(hogwild.load_run(tmp_path / "run"))):
        assert " tickets/s · " in told
        assert "samples" not in told
    assert " samples/s · " in str(trained(nn.Linear(3, 2), squared, kind="threads"))


# --- gradients in a list

FORMS = {
    "a number for a matrix": (lambda p: torch.ones(()), r"the gradient of weight is torch\.float32 of shape \[\]"),
    "transposed": (lambda p: torch.ones(p.shape[::-1]), r"gradient of weight is torch\.float32 of shape \[3, 2\]"),
    "another dtype": (lambda p: torch.ones_like(p, dtype=torch.float64), r"weight is torch\.float64 of shape \[2, 3\]"),
    "complex": (lambda p: torch.ones_like(p, dtype=torch.complex64), r"weight is torch\.complex64 of shape \[2, 3\]"),
    "no tensor": (lambda p: 1.0, r"the gradient of weight is a float; a tensor or None works"),
}


@EVERY
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_of_another_form_than_its_parameter_is_refused(form: str, update: str) -> None:
    make, message = FORMS[form]

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, [make(p) for p in worker.read(ticket).parameters()], 0.0)

    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(work, update=update)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_there_is_one_gradient_for_each_trained_parameter(number: int) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            own, loss = gradients(worker.read(ticket))
            worker.commit(ticket, [*own, own[0]][:number], loss)

    with pytest.raises(hogwild.ArgumentError, match=f"gradients given: {number}, trained parameters: 2"):
        launched(work)


# --- layers that one way of differentiating does not reach


class Checkpointed(nn.Module):
    """Its first layers are computed again in the backward pass, as torch did once by default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=True)
        return self.last(inner)


@pytest.mark.parametrize("update", [*SAME_BITS, "locked"])
def test_layers_that_would_get_no_gradient_are_named(update: str) -> None:
    message = r"no gradient to first\.0\.weight, first\.0\.bias, and backward\(\) does, .*use_reentrant.*'backward'"
    with pytest.raises(hogwild.ArgumentError, match=message):
        trained(Checkpointed(), squared, update=update)


@EVERY
def test_by_backward_they_are_trained(update: str) -> None:
    model = Checkpointed()
    before = model.first[0].weight.clone()
    trained(model, squared, update=update, gradient=None if update == "racing" else "backward")
    assert not torch.equal(model.first[0].weight, before)


@pytest.mark.parametrize("update", OTHER_BITS)
def test_a_branch_that_is_not_taken_has_no_gradient_by_either(update: str) -> None:
    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) if torch.rand(()) < 0.5 else self.other(x)

    assert trained(Branched(), squared, update=update, gradient=None if update == "racing" else "grad").updates == 8


# --- loops that do nothing


def yields(worker: hogwild.Worker) -> Any:
    while (ticket := worker.claim()) is not None:
        yield worker.commit(ticket, *gradients(worker.read(ticket)))


async def is_async(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.read(ticket)))


@pytest.mark.parametrize(
    ("work", "why"), [(yields, "work yields"), (is_async, "work is async"), ("w", "work is a str")]
)
def test_a_loop_that_would_do_nothing_is_refused(work: Any, why: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=why):
        launched(work)


def asks_whether_the_ticket_is_true(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.commit(ticket, *gradients(worker.read(ticket)))


def test_a_ticket_is_true_that_of_number_0_too() -> None:
    assert launched(asks_whether_the_ticket_is_true).updates == 6


def test_a_loop_with_other_arguments_is_refused_before_the_run() -> None:
    def work(worker: hogwild.Worker, gamma: float, *, steps: int = 1) -> None:
        asks_whether_the_ticket_is_true(worker)

    with pytest.raises(
        hogwild.ArgumentError, match=r"called as work\(worker\), .*missing a required argument: 'gamma'"
    ):
        launched(work)
    assert launched(partial(work, gamma=0.9)).updates == 6
    assert launched(wraps(work)(lambda worker: work(worker, 0.9))).updates == 6


def commits_the_loss(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.commit(ticket, nn.functional.mse_loss(worker.read(ticket)(INPUT), TARGET))  # type: ignore[arg-type]


def test_a_loss_in_the_place_of_the_gradients_is_named() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"gradient is one tensor of shape \[\]; pass a list"):
        launched(commits_the_loss)


def commits_nothing(worker: hogwild.Worker) -> None:
    while ticket := worker.claim():
        worker.read(ticket)
        worker.commit(ticket)


def test_a_gradient_that_is_left_out_ends_the_run_at_once() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"^gradient is a NoneType; .*, as commit\(ticket, torch\.auto"):
        launched(commits_nothing)


def test_an_optimizer_without_an_argument_is_told_which_it_gets() -> None:
    with pytest.raises(hogwild.ArgumentError, match=r"called with list\(model\.named_parameters\(\)\)"):
        hogwild.launch(ends_early, nn.Linear(3, 2), optimizer=lambda: None, updates=1)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_ends_early_is_told_how_long_one_goes_on(kind: str) -> None:
    with pytest.raises(
        hogwild.WorkerError, match=r"before the work was done; a loop goes on until claim\(\) gives None"
    ):
        launched(ends_early, kind=kind, max_restarts=1)


def ends_early(worker: hogwild.Worker) -> None:
    ticket = worker.claim()
    assert ticket is not None
    worker.commit(ticket, *gradients(worker.read(ticket)))


# --- numbers that are tensors with a graph; torch warns where one is made a number, and a warning here is an error


def tells_tensors(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = nn.functional.mse_loss(replica(INPUT), TARGET)
        worker.info.log(told=2 * loss)
        worker.commit(ticket, torch.autograd.grad(loss, [*replica.parameters()], retain_graph=True), loss)


def logs_tensors(model: nn.Module, batch: Tensor) -> Tensor:
    loss = model(batch).square().mean()
    info = hogwild.worker_info()
    assert info is not None
    info.log(told=2 * loss)
    return loss


def test_a_loss_that_is_told_and_logged_may_have_a_graph() -> None:
    own = launched(tells_tensors)
    trained = hogwild.train(
        nn.Linear(3, 2),
        INPUT,
        logs_tensors,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        batch_size=2,
        epochs=3,
        kind="threads",
        update="ordered",
    )
    for run in (own, trained):
        assert [row["told"] for row in run.logged] == [2 * loss for loss in run.journal["loss"]]
        assert len(run.logged) == len(run.journal) > 0
