"""Workers as processes: what the parent tells them, hears of them, and how it ends them.

    parent ──Package, Arena, pipe──▶ worker process        one thread trains; one waits for the parent's death
           ◀── Logged, Finished, Failed ──                 shared memory and file locks need no messages

The fork server has torch imported, so a worker starts in milliseconds. A pipe belongs to one worker and takes no
lock, so a worker that dies leaves nothing held; the parent learns of the death from the operating system.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import ClassVar

from torch import nn

from hogwild.errors import ArgumentError, WorkerError
from hogwild.model.replica import extras_of
from hogwild.shared.state import SharedState
from hogwild.workers.held_signals import HeldSignals, holding
from hogwild.workers.process.package import Package
from hogwild.workers.process.process_main import EXTRAS, process_main
from hogwild.workers.process.spawn import (
    SERVER_LOST,
    at_its_end,
    comes_to_its_end,
    make_process,
    start_context,
    start_process,
    start_server,
)
from hogwild.workers.task import Task
from hogwild.workers.team import Died, Event, Failed, Finished, taken

_STACKS_PATIENCE = 0.5  # seconds for a worker to write its stacks
_LEAVING_PATIENCE = 5.0  # seconds for a process that has told its end to leave: a user's thread may keep it
_AT_ONCE = 1000  # messages of a worker
_ORPHAN_PATIENCE = 60.0  # seconds for a process to leave whose start nobody will know the end of


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

    own_processes: ClassVar[bool] = True

    @staticmethod
    def warm_up() -> None:
        """Let the fork server begin to import torch."""
        start_server()

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
        state.locks.give(state.control)
        stand_ins = {id(p): ("parameter", i) for i, p in enumerate(trained)}
        stand_ins.update({id(p): ("constant", i) for i, p in enumerate(constant)})
        parts = {name: getattr(task, name) for name in Task.__dataclass_fields__ if name != "plan"}
        extras = [extras_of(parameter) for parameter in (*trained, *constant)]
        self._package = Package({"model": model, **parts, EXTRAS: extras}, stand_ins)
        self._context = start_context()
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, connection.Connection] = {}
        self._stacks: dict[int, connection.Connection] = {}
        self._finished: set[int] = set()
        self._told: deque[Event] = deque()
        self._leaving: dict[int, float] = {}
        self._lost: list[int] = []  # workers that ended while they were started, which nobody has been told

    def start(self, index: int) -> None:
        """Start worker `index`. Where the fork server ends meanwhile, so has the worker; the next start has another.

        Raises:
            WorkerError: no process can be started; or one was all the same, and does not end.
        """
        with HeldSignals() as signals:  # what has been started is known, whoever is interrupted
            signals.hold()
            self._start(index)

    def _start(self, index: int) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        stacks, into_stacks = self._context.Pipe(duplex=False)
        arguments = index, self._plan, self._arena, self._package, sender, into_stacks
        process = make_process(process_main, arguments, f"hogwild-{index}")
        try:
            started = _started(process, index)
        finally:
            sender.close()
            into_stacks.close()
        self._finished.discard(index)
        if started:
            self._processes[index] = process
            self._pipes[index] = receiver
            self._stacks[index] = stacks
        else:
            self._lost.append(index)
            _wait_for_orphan(index, stacks)
            receiver.close()
            stacks.close()

    def running(self) -> set[int]:
        """Workers whose end has not been told."""
        return {*self._processes, *self._lost}

    def events(self, timeout: float) -> Iterable[Event]:
        """What the processes have told, and which of them have ended without a word."""
        while self._lost:
            yield Died(self._lost.pop(), SERVER_LOST, with_server=True)
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
        with_server = ended and self._make_sure(index)
        yield from self._received(index)
        if ended:
            process.join()
            del self._processes[index]
            self._pipes.pop(index).close()
            self._stacks.pop(index).close()
            self._leaving.pop(index, None)
            if index not in self._finished:
                yield Died(index, process.exitcode or 0, with_server)
            process.close()

    def _make_sure(self, index: int) -> bool:
        """End a process that is said to have ended, and has not: all are, when the fork server itself dies.

        Returns True where it had not.
        """
        process, pipe = self._processes[index], self._stacks[index]
        if process.exitcode != SERVER_LOST or process.pid is None or at_its_end(pipe):
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        comes_to_its_end(pipe, _LEAVING_PATIENCE)
        return True

    def _received(self, index: int) -> Iterator[Event]:
        more = True
        while more:
            more = self._receive(self._pipes[index])
            for event in taken(self._told):  # of another worker, too, where an interruption left something
                if isinstance(event, Finished | Failed):
                    self._leaving[event.worker] = time.monotonic() + _LEAVING_PATIENCE
                if isinstance(event, Finished):
                    self._finished.add(event.worker)
                yield event

    def _receive(self, pipe: connection.Connection) -> bool:
        """Read what is there, or much of it; True where there may be more. Meanwhile a signal waits, for it would lose
        a message, or half of one."""
        with holding(), suppress(EOFError, OSError):  # closed, or cut off by the worker's death
            for _ in range(_AT_ONCE):
                if not pipe.poll():
                    return False
                self._told.append(pickle.loads(pipe.recv_bytes()))
            return True
        return False

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


def _started(process: BaseProcess, index: int) -> bool:
    """Start a process; False where the fork server died before it had told its number.

    Raises:
        WorkerError: it cannot be started.
    """
    try:
        return start_process(process)
    except (OSError, ArgumentError) as error:
        raise WorkerError(f"worker {index} cannot be started: {error}", worker=index) from error


def _wait_for_orphan(index: int, stacks: connection.Connection) -> None:
    """The server may have forked the worker before it died. It sees that nobody waits for it, and leaves.

    Raises:
        WorkerError: it does not.
    """
    if not comes_to_its_end(stacks, _ORPHAN_PATIENCE):
        raise WorkerError(
            f"worker {index} was started by a fork server that died (killed by somebody, or by the kernel when memory "
            f"ran out), and has not ended within {_ORPHAN_PATIENCE:.0f} s"
        )
