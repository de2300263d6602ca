"""Workers as threads of this process.

They share the interpreter: under the GIL they run side by side only while torch computes. Nothing below relies on
the GIL: of Python objects threads share the task and the copy of the model, which they only read, the queue of events,
which locks itself, and the locks (docs/free-threading.md lists what protects what). A thread that raises is replaced
like any worker; one that hangs cannot be replaced, for nothing ends it for sure, so the run fails. Where it hangs in
Python code, it ends with the run; else with the program, as all do when a signal kills it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from hogwild.data.sources import own_copy
from hogwild.errors import ArgumentError
from hogwild.model.replica import carry, extras_of, replicate, stand_ins_of
from hogwild.model.row_parameter import parameters_on
from hogwild.shared.locks import Lock, PairedLock
from hogwild.shared.state import SharedState
from hogwild.shared.words import Aborted
from hogwild.workers.recompute import Spare
from hogwild.workers.surroundings.blas_threads import blas_threads
from hogwild.workers.surroundings.shared_code import count_no_more
from hogwild.workers.surroundings.torch_threads import torch_threads
from hogwild.workers.surroundings.vector_math import call_vector_functions
from hogwild.workers.task import Task
from hogwild.workers.team import Died, Event, Finished, Logged, failure, taken, usage
from hogwild.workers.worker import Worker

_PATIENCE = 2.0  # seconds for threads to finish their update once the run has failed
_ENDING = 1.0  # seconds for the kernel to end a thread that is done with Python
_LEAVING = 0.5  # seconds for those that do not to be interrupted, should they execute Python code
_BETWEEN = 1e-3  # seconds between looks at who is still there


class ThreadTeam:
    """Worker threads over one arena.

    Args:
        task: what they do.
        state: the parent's view of the shared state, from whose arena each makes its own.
        model: the caller's, which is copied for each worker and not touched.
        trained, constant: its parameters, in the order of the plan's layouts.
    """

    own_processes: ClassVar[bool] = False

    @staticmethod
    def warm_up() -> None:
        """A thread needs nothing to start."""

    def __init__(
        self,
        task: Task,
        state: SharedState,
        model: nn.Module,
        trained: Sequence[nn.Parameter],
        constant: Sequence[nn.Parameter],
    ) -> None:
        self.task = task
        self._state = state
        # The caller's model is where versions are evaluated, even while a replaced worker copies what it needs.
        own = stand_ins_of(model)
        self._model = replicate(model, own)
        self._trained, self._constant = ([own[id(p)] for p in group] for group in (trained, constant))
        self._threads: dict[int, threading.Thread] = {}
        self._told: deque[Event] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # an interruption takes no lock of it away
        self._make_locks()
        self._lent = False

    def start(self, index: int) -> None:
        """Start worker `index`.

        Raises:
            ArgumentError: the system lets this program have no further thread.
        """
        if not self._lent:
            self._lent = True
            torch_threads.lend()
            blas_threads.lend()
            call_vector_functions()
            count_no_more()
        thread = threading.Thread(target=self._main, args=(index,), name=f"hogwild-{index}", daemon=True)
        self._threads[index] = thread
        try:
            thread.start()
        except RuntimeError as error:
            del self._threads[index]
            raise ArgumentError(
                f"no thread can be started for worker {index} ({error}): the system, or the container, lets this "
                f"program have no more (ulimit -u); fewer workers need less"
            ) from error

    def running(self) -> set[int]:
        """Workers whose end has not been told."""
        return set(self._threads)

    def events(self, timeout: float) -> Iterable[Event]:
        """What the threads have told; an end is told once the thread is gone."""
        with suppress(queue.Empty):
            if not self._told:
                self._bell.get(timeout=timeout)
            while True:
                self._bell.get_nowait()
        for event in taken(self._told):
            if isinstance(event, Finished | Died):
                _join(self._threads.pop(event.worker))
            yield event

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        self._bell.put(None)

    def stacks(self, index: int) -> str:  # noqa: ARG002
        """The stacks of all threads of this program."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return file.read()

    def end(self, index: int) -> bool:  # noqa: ARG002
        """A thread cannot be ended."""
        return False

    def kill(self) -> None:
        """Wait a moment for the threads to leave, and let SystemExit be raised in those that have not.

        Left to end with the program, one that calls torch again and again would abort that (before Python 3.14).
        """
        self._wait(_PATIENCE)
        left = [thread for thread in self._threads.values() if thread.is_alive()]
        for thread in left:
            _raise_in(thread)
        deadline = time.monotonic() + _LEAVING
        while left and time.monotonic() < deadline:
            self._free_locks()
            self._wait(_BETWEEN)
            left = [thread for thread in left if thread.is_alive()]
        self._make_locks()  # for who saves what there is, and waits for nobody

    def _free_locks(self) -> None:
        """Take the locks from threads that were ended as they took one, or hang with it: those that wait for it end in
        their turn."""
        for lock in self._thread_locks:
            with suppress(RuntimeError):  # nobody has it
                lock.release()

    def _wait(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        for thread in self._threads.values():
            _join(thread, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Give torch, and NumPy, their threads back."""
        if self._lent:
            self._lent = False
            blas_threads.give_back()
            torch_threads.give_back()

    def _main(self, index: int) -> None:
        worker = None
        try:
            torch.set_num_threads(self.task.flags.intra_op)
            worker = self._make_worker(index)
            worker.run()
            self._tell(usage(index, owns_process=False))
        except Aborted:
            self._tell(usage(index, owns_process=False))
        except BaseException as error:
            self._tell(failure(worker, index, error))
            self._tell(Died(index, 0))

    def _make_worker(self, index: int) -> Worker:
        state = SharedState(self._state.plan, self._state.arena)
        self._give_locks(state)
        replica, parameters = make_replica(self._model, self._trained, self._constant, state)
        return Worker(
            index,
            self._own_task(),
            state,
            replica,
            parameters,
            owns_process=False,
            log=lambda update, batch, metrics: self._tell(Logged(index, update, batch, metrics)),
            make_spare=lambda: Spare(
                self._own_task(), *make_replica(self._model, self._trained, self._constant, state)
            ),
        )

    def _make_locks(self) -> None:
        state = self._state
        self._thread_locks = [threading.Lock() for _ in range(2 + len(state.plan.shards))]
        self._locks: list[Lock] = [*self._thread_locks]
        if state.plan.dealing.nodes > 1:  # the courier is a process, and takes these locks too
            self._locks[:2] = map(PairedLock, self._locks, (state.locks.ticket, state.locks.commit))
        self._give_locks(state)

    def _give_locks(self, state: SharedState) -> None:
        state.control.ticket_lock, state.control.commit_lock, *state.control.shard_locks = self._locks

    def _own_task(self) -> Task:
        """The task with a source of the worker's own; data sets are only read, and shared."""
        return replace(self.task, source=own_copy(self.task.source) if self.task.source is not None else None)


def make_replica(
    model: nn.Module, trained: Sequence[nn.Parameter], constant: Sequence[nn.Parameter], state: SharedState
) -> tuple[nn.Module, list[nn.Parameter]]:
    """A replica of the model on shared memory, and its trained parameters in layout order."""
    parameters = parameters_on(state)
    substitutes = {id(parameter): own for parameter, own in zip(trained, parameters, strict=True)}
    for parameter, view in zip(constant, state.constants, strict=True):
        substitutes[id(parameter)] = nn.Parameter(view, requires_grad=False)
    for parameter in (*trained, *constant):
        carry(extras_of(parameter), substitutes[id(parameter)])
    return replicate(model, substitutes), parameters


def _join(thread: threading.Thread, patience: float | None = None) -> None:
    """Wait until a thread has ended, for the kernel too. Before Python 3.13 that is some time after `join`, and in a
    program that forked in between, the fork would have the lock that MKL takes as a thread ends, for ever.
    """
    thread.join(patience)
    kernels = Path("/proc/self/task") / str(thread.native_id)
    deadline = time.monotonic() + _ENDING
    while not thread.is_alive() and kernels.exists() and time.monotonic() < deadline:
        time.sleep(1e-4)


def _raise_in(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread, as soon as it executes Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
