"""The loop of a run that a kernel trains: in place where the rule writes in place, else on copies of the rows.

in place     claim → draw → step(the tables) → journal
lent         claim → draw → the rows, at the version to be seen, where they wait for their turn → step(them)
by version   claim → draw → the rows, at the version to be seen → step(copies) → before − after → commit

A ticket that has to wait for its version is drawn meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.errors import NonFiniteError, some_of
from hogwild.kernels.kernel import Array, Drawn, Kernel
from hogwild.kernels.overlay import Numbering
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import Field, Hook

if TYPE_CHECKING:
    from hogwild.workers.worker import Worker

_LOOK_EVERY = 32  # tickets of which one is looked at, whether what it has written is finite
LOWER = "a lower learning rate, or other initial weights, may help"
Rows = dict[str, tuple[Tensor, Tensor]]
Numbered = tuple[dict[str, Array], dict[str, Array]]


def kernel_loop(worker: Worker) -> None:
    """Train every ticket there is by the kernel of the task."""
    kernel = kernel_of(worker)
    if worker.rule.lends:
        _train_what_is_lent(worker, kernel)
    elif worker.rule.versioned:
        _train_by_version(worker, kernel)
    else:
        _train_in_place(worker, kernel)


def kernel_of(worker: Worker) -> Kernel:
    """The kernel that is the source of the task."""
    kernel = worker.task.source
    assert isinstance(kernel, Kernel)
    return kernel


class _Drawing:
    """What tickets train on, their rows numbered."""

    def __init__(self, worker: Worker, kernel: Kernel) -> None:
        tables = kernel.parameters_in(worker.replica)
        self._batch, self._numbering = worker.batch, Numbering(kernel, {name: len(own) for name, own in tables.items()})
        self._ahead: tuple[Ticket, Numbered] | None = None

    def of(self, ticket: Ticket) -> Numbered:
        """(table → its rows that the ticket touches, each once; what is drawn, renumbered)."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] is ticket else self._numbering.number(self._batch(ticket))

    def ahead(self, ticket: Ticket) -> None:
        """Draw a ticket before its turn. What that raises is raised in its turn, if that comes."""
        with suppress(Exception):
            self._ahead = ticket, self._numbering.number(self._batch(ticket))


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
        step = partial(kernel.step, tables, drawn, _rate(worker, kernel, ticket))
        _commit(worker, partial(worker.rule.train_in_place, ticket, step))
        if ticket.update % _LOOK_EVERY == 0:
            _refuse_not_finite(worker, kernel, ticket, tables, drawn)
        ticket = worker.claim()


def _refuse_not_finite(
    worker: Worker, kernel: Kernel, ticket: Ticket, tables: Mapping[str, Array], drawn: Drawn
) -> None:
    """End the run where the rows that a ticket has touched are not finite, unless it ignores that.

    A look at all rows of all tickets would take longer than some steps; those that are not finite spread.
    """
    touched = [(name, drawn[array].ravel()) for name, arrays in kernel.tables.items() for array in arrays]
    bad = dict.fromkeys(name for name, rows in touched if not np.isfinite(tables[name][rows]).all())
    if bad and not worker.seat.ignores_nonfinite(ticket.update):
        where = f"at update {ticket.update} (batch {ticket.batch}), worker {worker.index}"
        raise NonFiniteError(
            f"rows of {some_of([*bad])} are not finite {where}; the shared model has been written by it ({LOWER})",
            worker=worker.index,
            update=ticket.update,
            batch=ticket.batch,
        )


def _commit(worker: Worker, commit: Callable[[], None]) -> None:
    """What a worker does with its ticket at the end, with the words that say so."""
    row, control = worker.control.row(worker.index), worker.control
    row[Field.COMPUTED] += 1
    worker.seat.pause(Hook.COMMITTING)
    commit()
    row[Field.ENDED] = time.monotonic_ns()
    control.finish(worker.index)


def _train_what_is_lent(worker: Worker, kernel: Kernel) -> None:
    names, drawing = worker.task.plan.trained_names, _Drawing(worker, kernel)
    places = {name: names.index(name) for name in kernel.tables}
    while (ticket := worker.claim(drawing.ahead)) is not None:
        rows, renumbered = drawing.of(ticket)
        lent = worker.rule.lend(ticket, {places[name]: numbers for name, numbers in rows.items()})
        tables = {name: lent[place] for name, place in places.items()}
        loss = float(kernel.step(tables, renumbered, _rate(worker, kernel, ticket)))
        _commit(worker, partial(worker.rule.take_back, ticket, loss))


def _train_by_version(worker: Worker, kernel: Kernel) -> None:
    drawing = _Drawing(worker, kernel)
    while (ticket := worker.claim(drawing.ahead)) is not None:
        worker.read(ticket)  # also where it touches no row
        worker.commit(ticket, *_changed(worker, ticket, kernel, drawing))


def step_again(worker: Worker, ticket: Ticket, replica: nn.Module) -> tuple[Rows, float]:  # noqa: ARG001
    """What a ticket commits, computed a second time: (rows by table, loss) as `hogwild.launch` takes them."""
    kernel = kernel_of(worker)
    with torch.no_grad():
        return _changed(worker, ticket, kernel, _Drawing(worker, kernel))


def _changed(worker: Worker, ticket: Ticket, kernel: Kernel, drawing: _Drawing) -> tuple[Rows, float]:
    """(table → the rows that a ticket touches, with what it takes away from them; the loss). Of a rule that lends rows:
    with what becomes of them."""
    numbered, renumbered = drawing.of(ticket)
    rows = {name: torch.from_numpy(numbers) for name, numbers in numbered.items()}
    before = {name: worker.rows(ticket, name, numbers) for name, numbers in rows.items()}
    after, loss = run_on_copies(kernel, before, renumbered, _rate(worker, kernel, ticket))
    values = after if worker.rule.lends else _differences(before, after, 1 / ticket.share)
    return {name: (rows[name], own) for name, own in values.items()}, loss


def run_on_copies(
    kernel: Kernel, before: Mapping[str, Tensor], drawn: Drawn, rate: float
) -> tuple[dict[str, Tensor], float]:
    """(what becomes of rows by a step, the loss); the rows given stay as they are."""
    after = {name: rows.clone() for name, rows in before.items()}
    loss = float(kernel.step({name: rows.numpy() for name, rows in after.items()}, drawn, rate))
    return after, loss


def _differences(before: Mapping[str, Tensor], after: Mapping[str, Tensor], times: float) -> Mapping[str, Tensor]:
    """What is taken away from each row, so many times, in the memory of `before`."""
    for name, rows in before.items():
        rows.sub_(after[name])
        if times != 1.0:  # what is averaged over the tickets of an update is to be their sum
            rows.mul_(times)
    return before


def lr_of(kernel: Kernel, config: RunConfig, update: int) -> float:
    """The learning rate of a run at that update, which the kernel's schedule multiplies."""
    lr = config.at("lr", update)
    return kernel.lr if lr is None else float(lr)


def _rate(worker: Worker, kernel: Kernel, ticket: Ticket) -> float:
    lr = lr_of(kernel, worker.task.config, ticket.update)
    return lr * kernel.schedule(ticket.batch / worker.task.planned_batches)
