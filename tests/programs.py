"""Programs of their own that start in milliseconds: forked by a server that has torch imported, and has not trained.

For tests that kill a program, or fork one. What starting the interpreter does is for those that start one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import psutil

import hogwild.api
import hogwild.cli.running  # noqa: F401
from hogwild.workers.process import spawn
from hogwild.workers.process.early import fork_server
from hogwild.workers.process.spawn import start_context, start_process

# The fork server of the tests imports what a program imports first; that of a program does not, as no user's does.
spawn._AHEAD = (*spawn._AHEAD, "hogwild.api", "hogwild.cli.running")  # type: ignore[assignment]

UNIMPORTED = """
import sys
from hogwild.workers.process import early

class WithoutTorch:
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    def __getattr__(self, name):
        return getattr(sys, name)

early.sys = WithoutTorch()
"""
"""A program's first lines, by which it is as where nothing was done yet, though torch is imported."""


@dataclass(frozen=True)
class Program:
    """A running program, and what it prints."""

    process: BaseProcess
    output: TextIO

    def killed(self) -> int:
        """Kill it, and wait until those that it has started have seen that and left; returns its exit status, which is
        not that of a kill where it had ended already."""
        others = []
        with suppress(psutil.NoSuchProcess):
            others = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        deadline = time.monotonic() + 30
        while left := [other for other in others if living(other.pid)]:
            assert time.monotonic() < deadline, f"they outlive their program: {left}"
            time.sleep(0.01)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end; returns its exit status, negative where a signal ended it."""
        self.process.join()
        return self.process.exitcode


def living(number: int) -> bool:
    """Whether there is that process. Whoever is its parent now may leave it a zombie."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def running_in(sweep: Path) -> list[psutil.Process]:
    """The living processes of the runs of the sweep in that folder, which write its logs."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(Path(file.path).parent == sweep.resolve() / "logs" for file in process.open_files()):
                found.append(process)
    return found


def left_running_in(sweep: Path) -> list[psutil.Process]:
    """Those that still are after a while: the fork server of a run sees a moment later that the run has ended."""
    deadline = time.monotonic() + 30
    while (found := running_in(sweep)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@contextmanager
def started(
    source: str, *arguments: str, errors: Path, environment: Mapping[str, str] | None = None, warm: bool = True
) -> Iterator[Program]:
    """A program of that text with those arguments, and those variables of its environment besides, and `errors` for its
    standard error; it is killed in the end.

    `warm`: its own fork server, if it starts one, has torch imported too.
    """
    receiver, sender = start_context().Pipe(duplex=False)
    process = start_context().Process(target=_run, args=(source, arguments, sender, errors, environment or {}, warm))
    assert start_process(process)
    sender.close()
    with receiver, os.fdopen(os.dup(receiver.fileno()), encoding="utf-8") as output:
        try:
            yield Program(process, output)
        finally:
            process.kill()
            process.join()


def _run(
    source: str,
    arguments: tuple[str, ...],
    sender: Connection,
    errors: Path,
    environment: Mapping[str, str],
    warm: bool,
) -> None:
    with errors.open("wb") as file:
        become_a_program(sender.fileno(), file.fileno())
    sender.close()
    sys.argv = ["-c", *arguments]
    os.environ.update(environment)
    if warm:
        fork_server("processes")
    try:
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdout.flush()


def become_a_program(output: int, errors: int) -> None:
    """Let this process, which a fork server has forked, print into those files, and be as one that was started."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)  # type: ignore[misc]
    spawn._AHEAD = ()  # the tests have imported that, no run does: its server starts sooner
    never_a_server()


def never_a_server() -> None:
    """Let this process, which a fork server has forked, be as one that has imported what that had, and served nobody:
    a fork server that is forked here does what it does before it serves."""
    preload = sys.modules.pop("hogwild.workers.process.preload", None)
    if preload is None:  # it was spawned
        return
    for key, done_after_forks in list(util._afterfork_registry.items()):  # type: ignore[attr-defined]
        if done_after_forks is preload._let_go:
            del util._afterfork_registry[key]  # type: ignore[attr-defined]
