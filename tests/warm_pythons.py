"""What a Python prints that starts in milliseconds: it is forked by a server that has torch imported.

For tests of what a command does, with the fork server of a command: a fork of it. What starting the interpreter does,
and ending it by its own, is for those that start one.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType

from programs import become_a_program

from hogwild.workers.process import early, spawn
from hogwild.workers.process.early import fork_server
from hogwild.workers.process.spawn import start_context, start_process

_Done = subprocess.CompletedProcess[str]


def warm_python(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, timeout: float = 120
) -> _Done:
    """As `subprocess.run([sys.executable, *arguments], cwd=folder, env=environment)`, with what it printed."""
    return warm_pythons([arguments], [folder], [environment], timeout)[0]


def warm_pythons(
    commands: Sequence[Sequence[str]],
    folders: Sequence[Path],
    environments: Sequence[Mapping[str, str] | None],
    timeout: float = 120,
) -> list[_Done]:
    """The same of several that run side by side; none is left when this returns or raises."""
    processes, deadline = [], time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as name:
        files = [[Path(name) / f"{number} {stream}" for stream in (1, 2)] for number in range(len(commands))]
        try:
            for command, folder, environment, streams in zip(commands, folders, environments, files, strict=True):
                own = dict(os.environ if environment is None else environment)
                process = start_context().Process(target=_python, args=(list(command), folder, streams, own))
                assert start_process(process)
                processes.append(process)
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            texts = [[file.read_text(encoding="utf-8") for file in streams] for streams in files]
            assert all(process.exitcode is not None for process in processes), f"they do not end: {texts}"
        finally:
            for process in processes:
                process.kill()
                process.join()
        done = zip(commands, processes, texts, strict=True)
        return [subprocess.CompletedProcess(command, process.exitcode, *text) for command, process, text in done]


def _python(arguments: list[str], folder: Path, streams: Sequence[Path], environment: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output, errors = streams
    with output.open("wb") as printed, errors.open("wb") as told:
        become_a_program(printed.fileno(), told.fileno())
    try:
        _do(*arguments)
    finally:
        sys.stdout.flush()


def _do(first: str, *others: str) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first != "-m":
        fork_server("processes")
    if first == "-m":
        sys.argv = [*others]
        sys.path.insert(0, str(Path.cwd()))
        early.spawn = _AtItsMoment()  # type: ignore[assignment]
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        sys.path.insert(0, "")
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, main.__file__ = [first, *others], first
        sys.path.insert(0, str(Path(first).resolve().parent))
        exec(compile(Path(first).read_text(encoding="utf-8"), first, "exec"), main.__dict__)


class _AtItsMoment:
    """What a command starts a fork server by: that is a fork, when a command that imports torch forks it."""

    def start_context(self) -> BaseContext:
        return start_context()

    def start_server(self) -> None:
        early.spawn = spawn
        fork_server("processes")
