"""The loop of a run that a kernel trains: in place where the rule writes in place, else on copies of the rows.

in place     claim → draw → step(the tables) → journal
by version   claim → draw → the rows, at the version to be seen → step(copies) → before − after → commit
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hogwild.kernels.kernel import Drawn, Kernel
from hogwild.kernels.overlay import Numbering
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Field, Hook

if TYPE_CHECKING:
    from hogwild.workers.worker import Worker

Rows = dict[str, tuple[Tensor, Tensor]]


def kernel_loop(worker: Worker) -> None:
    """Train every ticket there is by the kernel of the task."""
    kernel = kernel_of(worker)
    if worker.rule.versioned:
        _train_by_version(worker, kernel)
    else:
        _train_in_place(worker, kernel)


def kernel_of(worker: Worker) -> Kernel:
    """The kernel that is the source of the task."""
    kernel = worker.task.source
    assert isinstance(kernel, Kernel)
    return kernel


def _train_in_place(worker: Worker, kernel: Kernel) -> None:
    ticket = worker.claim()
    if ticket is None:
        return
    parameters = kernel.parameters_in(worker.read(ticket))
    tables = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    rows = {name: len(table) for name, table in tables.items()}
    while ticket is not None:
        drawn = worker.batch(ticket)
        kernel.check(drawn, rows)
        _write(worker, ticket, partial(kernel.step, tables, drawn, _rate(worker, kernel, ticket)))
        ticket = worker.claim()


def _write(worker: Worker, ticket: Ticket, step: Callable[[], float]) -> None:
    """One update that a step makes in place, with a row of its own in the journal."""
    row, control = worker.control.row(worker.index), worker.control
    row[Field.COMPUTED] += 1
    worker.seat.pause(Hook.COMMITTING)
    worker.rule.train_in_place(ticket, step)
    row[Field.ENDED] = time.monotonic_ns()
    control.finish(worker.index)


def _train_by_version(worker: Worker, kernel: Kernel) -> None:
    sizes = _sizes(worker, kernel)
    numbering = Numbering(kernel, sizes)
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *_differences(worker, ticket, kernel, numbering, sizes))


def step_again(worker: Worker, ticket: Ticket, replica: nn.Module) -> tuple[Rows, float]:  # noqa: ARG001
    """What a ticket commits, computed a second time: (rows by table, loss) as `hogwild.launch` takes them."""
    kernel = kernel_of(worker)
    sizes = _sizes(worker, kernel)
    with torch.no_grad():
        return _differences(worker, ticket, kernel, Numbering(kernel, sizes), sizes)


def _sizes(worker: Worker, kernel: Kernel) -> dict[str, int]:
    """How many rows each table has."""
    return {name: len(table) for name, table in kernel.parameters_in(worker.replica).items()}


def _differences(
    worker: Worker, ticket: Ticket, kernel: Kernel, numbering: Numbering, sizes: Mapping[str, int]
) -> tuple[Rows, float]:
    """(table → the rows that a ticket touches, with what it takes away from them; the loss)."""
    drawn = worker.batch(ticket)
    kernel.check(drawn, sizes)
    rows, renumbered = numbering.number(drawn)
    before = {name: worker.rows(ticket, name, numbers) for name, numbers in rows.items()}
    loss = run_on_copies(kernel, before, renumbered, _rate(worker, kernel, ticket), 1 / ticket.share)
    return {name: (rows[name], values) for name, values in before.items()}, loss


def run_on_copies(kernel: Kernel, before: Mapping[str, Tensor], drawn: Drawn, rate: float, times: float = 1.0) -> float:
    """The loss of the step, run on copies of rows; `before` becomes what it takes away from each, so many times."""
    after = {name: rows.clone() for name, rows in before.items()}
    loss = float(kernel.step({name: rows.numpy() for name, rows in after.items()}, drawn, rate))
    for name, rows in before.items():
        rows.sub_(after[name])
        if times != 1.0:  # what is averaged over the tickets of an update is to be their sum
            rows.mul_(times)
    return loss


def _rate(worker: Worker, kernel: Kernel, ticket: Ticket) -> float:
    lr = worker.task.config.at("lr", ticket.update)
    return (kernel.lr if lr is None else lr) * kernel.schedule(ticket.batch / worker.task.batches)
