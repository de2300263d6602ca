"""What a worker process does, from its start to its end.

one thread trains; one waits for the parent's death, and ends the process with it
"""

from __future__ import annotations

import faulthandler
import pickle
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection

import torch
from torch import nn

from hogwild.errors import WorkerError
from hogwild.model.replica import carry
from hogwild.model.row_parameter import parameters_on
from hogwild.shared.arena import Arena
from hogwild.shared.state import SharedState, StatePlan
from hogwild.shared.words import Aborted
from hogwild.workers.process.package import Package
from hogwild.workers.process.spawn import begin_with_parent
from hogwild.workers.recompute import Spare
from hogwild.workers.surroundings.allocator import ask_for_huge_pages, keep_freed_memory
from hogwild.workers.surroundings.blas_threads import blas_threads
from hogwild.workers.surroundings.vector_math import call_vector_functions
from hogwild.workers.task import Task
from hogwild.workers.team import Event, Failed, Logged, failure, usage
from hogwild.workers.worker import Worker

EXTRAS = "a parameter's attributes or hooks"


def process_main(
    index: int,
    plan: StatePlan,
    arena: Arena,
    package: Package,
    pipe: connection.Connection,
    stacks: connection.Connection,
) -> None:
    """Open the shared memory, unpack what came with the start, and do the work."""
    begin_with_parent()
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    keep_freed_memory()
    ask_for_huge_pages()
    torch.set_num_threads(1)  # while it unpacks; then the task says
    blas_threads.lend()
    call_vector_functions()  # code of the user's may have threads of its own
    worker = None
    try:
        worker = _make_worker(index, plan, arena, package, pipe)
        worker.run()
        _tell(pipe, usage(index, owns_process=True))
    except Aborted:
        _tell(pipe, usage(index, owns_process=True))
    except BaseException as error:
        _tell(pipe, failure(worker, index, error))


def _tell(pipe: connection.Connection, event: Event) -> None:
    try:
        message = pickle.dumps(event)
        pickle.loads(message)  # some exceptions can be pickled but not read back
    except Exception:
        if not isinstance(event, Failed):
            raise
        message = pickle.dumps(replace(event, error=WorkerError(event.name)))
    with suppress(BrokenPipeError):  # nobody listens any more
        pipe.send_bytes(message)


def _make_worker(index: int, plan: StatePlan, arena: Arena, package: Package, pipe: connection.Connection) -> Worker:
    state = SharedState(plan, arena)
    state.locks.give(state.control)
    state.map_in()
    own = _unpacked(package, state)
    own.task.flags.apply()
    torch.set_num_threads(own.task.flags.intra_op)
    blas_threads.lend()  # of libraries that came with what was unpacked
    return Worker(
        index,
        own.task,
        state,
        own.replica,
        own.parameters,
        owns_process=True,
        log=lambda update, batch, metrics: _tell(pipe, Logged(index, update, batch, metrics)),
        make_spare=partial(_unpacked, package, state),
    )


def _unpacked(package: Package, state: SharedState) -> Spare:
    """What a worker computes with: its own copies of all that was packed, on the shared memory."""
    parameters = parameters_on(state)
    constants = [nn.Parameter(view, requires_grad=False) for view in state.constants]
    found: dict[tuple[str, int], nn.Parameter] = {("parameter", i): p for i, p in enumerate(parameters)}
    found.update({("constant", i): p for i, p in enumerate(constants)})
    parts = package.open(found)
    replica = parts.pop("model")
    for parameter, extras in zip((*parameters, *constants), parts.pop(EXTRAS), strict=True):
        carry(extras, parameter)
    return Spare(Task(plan=state.plan, **parts), replica, parameters)
