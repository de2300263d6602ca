"""Workers as processes: started by `forkserver` on Linux and by `spawn` elsewhere, never by a bare fork.

    parent ──Package, Arena, pipe──▶ worker process        one thread trains; one waits for the parent's death
           ◀── Logged, Finished, Failed ──                 shared memory and file locks need no messages

The fork server has torch imported, so a worker starts in milliseconds. A pipe belongs to one worker and takes no
lock, so a worker that dies leaves nothing held; the parent learns of the death from the operating system.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, spawn
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import nn

from hogwild.control import Aborted, Control
from hogwild.errors import WorkerError
from hogwild.memory import Arena
from hogwild.replica import carry, extras_of
from hogwild.state import SharedState, StatePlan
from hogwild.workers.allocator import keep_freed_memory
from hogwild.workers.events import Died, Event, Failed, Finished, Logged, failure, usage
from hogwild.workers.locks import FileLock
from hogwild.workers.loop import Task, Worker
from hogwild.workers.package import Package

_PRELOAD = "hogwild.workers.preload"
_TICKET_BYTE, _COMMIT_BYTE = 0, 1  # of the arena's file; that they are locked has no bearing on what they hold
_EXTRAS = "a parameter's attributes or hooks"
_STACKS_PATIENCE = 0.5  # seconds for a worker to write its stacks
_LEAVING_PATIENCE = 5.0  # seconds for a process that has told its end to leave: a user's thread may keep it
_SERVER_LOST = 255  # the exit code of all processes of a fork server that has died
_start_lock = threading.Lock()


def start_server() -> None:
    """Let the fork server begin to import torch, ahead of the first worker. Does nothing where there is none."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing import forkserver

        with _start_lock, _as_the_server_starts():
            forkserver.ensure_running()


@contextmanager
def _as_the_server_starts() -> Iterator[None]:
    """Inside, a Python that is started does not look for modules in the current folder.

    The server is started by `python -c`, which would: a folder named hogwild or torch there would be taken for the
    package. Workers get the caller's own path once they are forked. Ctrl-C is held back until the server, which
    inherits that, has imported what it imports; it would print a traceback.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _context() -> BaseContext:
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload([_PRELOAD])
    return context


class ProcessTeam:
    """Worker processes over one arena.

    Args:
        task: what they do.
        state: the parent's view of the shared state.
        model: the caller's, pickled without its parameters.
        trained, constant: its parameters, in the order of the plan's layouts.

    Raises:
        ArgumentError: something cannot be pickled.
    """

    def __init__(
        self,
        task: Task,
        state: SharedState,
        model: nn.Module,
        trained: Sequence[nn.Parameter],
        constant: Sequence[nn.Parameter],
    ) -> None:
        start_server()
        self.task = task
        self._arena = state.arena
        self._plan = state.plan
        _set_locks(state.control, state.arena)
        stand_ins = {id(p): ("parameter", i) for i, p in enumerate(trained)}
        stand_ins.update({id(p): ("constant", i) for i, p in enumerate(constant)})
        parts = {name: getattr(task, name) for name in Task.__dataclass_fields__ if name != "plan"}
        extras = [extras_of(parameter) for parameter in (*trained, *constant)]
        self._package = Package({"model": model, **parts, _EXTRAS: extras}, stand_ins)
        self._context = _context()
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, connection.Connection] = {}
        self._stacks: dict[int, connection.Connection] = {}
        self._finished: set[int] = set()
        self._leaving: dict[int, float] = {}

    def start(self, index: int) -> None:
        """Start worker `index`."""
        receiver, sender = self._context.Pipe(duplex=False)
        stacks, into_stacks = self._context.Pipe(duplex=False)
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=_main,
            args=(index, self._plan, self._arena, self._package, sender, into_stacks),
            name=f"hogwild-{index}",
            daemon=True,
        )
        with _start_lock, _without_main():
            process.start()
        sender.close()
        into_stacks.close()
        self._processes[index] = process
        self._pipes[index] = receiver
        self._stacks[index] = stacks
        self._finished.discard(index)

    def running(self) -> set[int]:
        """Workers whose process has not been reaped."""
        return set(self._processes)

    def events(self, timeout: float) -> Iterable[Event]:
        """What the processes have told, and which of them have ended without a word."""
        sentinels = [process.sentinel for process in self._processes.values()]
        connection.wait([*self._pipes.values(), *sentinels], timeout)
        for index in list(self._processes):
            yield from self._hear(index)
        for index, deadline in self._leaving.items():
            if time.monotonic() > deadline:
                self._processes[index].kill()

    def _hear(self, index: int) -> Iterator[Event]:
        process = self._processes[index]
        ended = process.exitcode is not None
        if ended:
            self._make_sure(index)
        yield from self._received(index)
        if ended:
            process.join()
            del self._processes[index]
            self._pipes.pop(index).close()
            self._stacks.pop(index).close()
            self._leaving.pop(index, None)
            if index not in self._finished:
                yield Died(index, process.exitcode or 0)
            process.close()

    def _make_sure(self, index: int) -> None:
        """End a process that is said to have ended, and may not have: all are, when the fork server itself dies.

        The writing ends of its pipes are its alone, and the kernel closes them with it.
        """
        process, pipe = self._processes[index], self._stacks[index]
        if process.exitcode != _SERVER_LOST or process.pid is None:
            return
        if not _at_its_end(pipe):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _LEAVING_PATIENCE
        while not _at_its_end(pipe) and time.monotonic() < deadline:
            pipe.poll(0.01)

    def _received(self, index: int) -> Iterator[Event]:
        pipe = self._pipes[index]
        try:
            while pipe.poll():
                event: Event = pickle.loads(pipe.recv_bytes())
                if isinstance(event, Finished | Failed):
                    self._leaving[index] = time.monotonic() + _LEAVING_PATIENCE
                if isinstance(event, Finished):
                    self._finished.add(index)
                yield event
        except (EOFError, OSError):  # closed, or cut off in the middle of a message by the worker's death
            return

    def stacks(self, index: int) -> str:
        """The stacks of all threads of that process, which its signal handler writes even where Python is stuck."""
        pipe, pid = self._stacks[index], self._processes[index].pid
        assert pid is not None
        text = b""
        with suppress(ProcessLookupError):  # it died meanwhile
            os.kill(pid, signal.SIGUSR1)
        while pipe.poll(_STACKS_PATIENCE):
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                break
            text += part
        return text.decode(errors="replace")

    def end(self, index: int) -> bool:
        """SIGKILL that process."""
        self._processes[index].kill()
        return True

    def kill(self) -> None:
        """SIGKILL every process and reap it."""
        for process in self._processes.values():
            process.kill()
        for index, process in self._processes.items():
            process.join()
            self._make_sure(index)

    def close(self) -> None:
        """Reap what is left and give back file descriptors."""
        self.kill()
        for index in list(self._processes):
            self._processes.pop(index).close()
            self._pipes.pop(index).close()
            self._stacks.pop(index).close()
        self._package.close()


def _at_its_end(pipe: connection.Connection) -> bool:
    """True when nobody holds the writing end any more; what was written before is dropped."""
    while pipe.poll():
        if not os.read(pipe.fileno(), 1 << 16):
            return True
    return False


@contextmanager
def _without_main() -> Iterator[None]:
    """Inside, this thread starts processes that do not import the caller's `__main__`.

    The package brings what they need of it by value, so a script without a guard, a notebook and `python -` work.
    """
    original = spawn.get_preparation_data
    me = threading.get_ident()

    def without_main(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == me:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _set_locks(control: Control, arena: Arena) -> None:
    control.ticket_lock = FileLock(arena.descriptor, _TICKET_BYTE)
    control.commit_lock = FileLock(arena.descriptor, _COMMIT_BYTE)


# --- in the worker process


def _main(
    index: int,
    plan: StatePlan,
    arena: Arena,
    package: Package,
    pipe: connection.Connection,
    stacks: connection.Connection,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what ends
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)  # while it unpacks; then the task says
    worker = None
    try:
        worker = _make_worker(index, plan, arena, package, pipe)
        worker.run()
        _tell(pipe, usage(index, owns_process=True))
    except Aborted:
        _tell(pipe, usage(index, owns_process=True))
    except BaseException as error:
        _tell(pipe, failure(worker, index, error))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _tell(pipe: connection.Connection, event: Event) -> None:
    try:
        message = pickle.dumps(event)
        pickle.loads(message)  # some exceptions can be pickled but not read back
    except Exception:
        if not isinstance(event, Failed):
            raise
        message = pickle.dumps(replace(event, error=WorkerError(event.name)))
    pipe.send_bytes(message)


def _make_worker(index: int, plan: StatePlan, arena: Arena, package: Package, pipe: connection.Connection) -> Worker:
    state = SharedState(plan, arena)
    _set_locks(state.control, arena)
    parameters = [nn.Parameter(view) for view in state.slots[0].parameters]
    constants = [nn.Parameter(view, requires_grad=False) for view in state.constants]
    found: dict[tuple[str, int], nn.Parameter] = {("parameter", i): p for i, p in enumerate(parameters)}
    found.update({("constant", i): p for i, p in enumerate(constants)})
    parts = package.open(found)
    replica = parts.pop("model")
    for parameter, extras in zip((*parameters, *constants), parts.pop(_EXTRAS), strict=True):
        carry(extras, parameter)
    task = Task(plan=plan, **parts)
    task.flags.apply()
    torch.set_num_threads(task.flags.intra_op)
    return Worker(
        index,
        task,
        state,
        replica,
        parameters,
        owns_process=True,
        log=lambda update, batch, metrics: _tell(pipe, Logged(index, update, batch, metrics)),
    )
