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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import ClassVar

from torch import nn

from hogwild.model.replica import extras_of
from hogwild.shared.state import SharedState
from hogwild.workers.package import Package
from hogwild.workers.process_main import EXTRAS, process_main, set_locks
from hogwild.workers.spawn import start_context, start_lock, start_server, without_main
from hogwild.workers.task import Task
from hogwild.workers.team import Died, Event, Failed, Finished

_STACKS_PATIENCE = 0.5  # seconds for a worker to write its stacks
_LEAVING_PATIENCE = 5.0  # seconds for a process that has told its end to leave: a user's thread may keep it
_SERVER_LOST = 255  # the exit code of all processes of a fork server that has died


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
        set_locks(state.control, state.arena, len(state.plan.shards))
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
        self._leaving: dict[int, float] = {}

    def start(self, index: int) -> None:
        """Start worker `index`."""
        receiver, sender = self._context.Pipe(duplex=False)
        stacks, into_stacks = self._context.Pipe(duplex=False)
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=process_main,
            args=(index, self._plan, self._arena, self._package, sender, into_stacks),
            name=f"hogwild-{index}",
            daemon=True,
        )
        with start_lock, without_main():
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
