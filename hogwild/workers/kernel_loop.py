"""The loop of a run that a kernel trains: in place where the rule writes in place, else on copies of the rows.

in place     claim → draw → step(the tables) → journal
by version   claim → draw → the rows, at the version to be seen → step(copies) → before − after → commit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hogwild.kernels.kernel import Drawn, Kernel
from hogwild.kernels.overlay import Numbering
from hogwild.shared.tickets import Ticket

if TYPE_CHECKING:
    from hogwild.workers.worker import Worker


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
        worker.train_in_place(ticket, partial(kernel.step, tables, drawn, _rate(worker, kernel, ticket)))
        ticket = worker.claim()


def _train_by_version(worker: Worker, kernel: Kernel) -> None:
    numbering = None
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        if numbering is None:
            numbering = _numbering(kernel, replica)
        gradients, loss = _deltas(worker, ticket, replica, kernel, numbering)
        worker.commit(ticket, gradients, loss)


def step_again(worker: Worker, ticket: Ticket, replica: nn.Module) -> tuple[Sequence[Tensor | None], float]:
    """What a ticket commits, computed a second time: (gradients, loss) as `hogwild.launch` takes them."""
    kernel = kernel_of(worker)
    with torch.no_grad():
        return _deltas(worker, ticket, replica, kernel, _numbering(kernel, replica))


def _numbering(kernel: Kernel, replica: nn.Module) -> Numbering:
    return Numbering(kernel, {name: len(table) for name, table in kernel.parameters_in(replica).items()})


def _deltas(
    worker: Worker, ticket: Ticket, replica: nn.Module, kernel: Kernel, numbering: Numbering
) -> tuple[list[Tensor | None], float]:
    """(for each parameter, the rows that a ticket touches with what it takes away from them; the loss)."""
    drawn = worker.batch(ticket)
    tables = kernel.parameters_in(replica)
    kernel.check(drawn, {name: len(table) for name, table in tables.items()})
    rows, renumbered = numbering.number(drawn)
    before = {name: table.detach().index_select(0, rows[name]) for name, table in tables.items()}
    loss = run_on_copies(kernel, before, renumbered, _rate(worker, kernel, ticket), 1 / ticket.share)
    trained = [parameter for parameter in replica.parameters() if parameter.requires_grad]
    names = {id(table): name for name, table in tables.items()}
    return [_sparse(p, rows, before, names.get(id(p))) for p in trained], loss


def run_on_copies(kernel: Kernel, before: Mapping[str, Tensor], drawn: Drawn, rate: float, times: float = 1.0) -> float:
    """The loss of the step, run on copies of rows; `before` becomes what it takes away from each, so many times."""
    after = {name: rows.clone() for name, rows in before.items()}
    loss = float(kernel.step({name: rows.numpy() for name, rows in after.items()}, drawn, rate))
    for name, rows in before.items():
        rows.sub_(after[name])
        if times != 1.0:  # what is averaged over the tickets of an update is to be their sum
            rows.mul_(times)
    return loss


def _sparse(
    parameter: Tensor, rows: Mapping[str, Tensor], values: Mapping[str, Tensor], name: str | None
) -> Tensor | None:
    if name is None:
        return None
    form = torch.sparse_coo_tensor
    return form(rows[name][None], values[name], parameter.shape, check_invariants=False, is_coalesced=True)


def _rate(worker: Worker, kernel: Kernel, ticket: Ticket) -> float:
    lr = worker.task.config.at("lr", ticket.update)
    return (kernel.lr if lr is None else lr) * kernel.schedule(ticket.batch / worker.task.batches)
