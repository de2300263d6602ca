"""What a Python prints that starts in milliseconds: it is forked by a server that has torch imported.

For tests of what a command does, with the fork server of a command: a fork of it. What starting the interpreter does
is for those that start one. No run draws its figure, as where there is no matplotlib.

    warm_python, warm_pythons   one, or several side by side, to their end
    warm_started                one while it runs: its files, its terminal, its signals; and it ends as an interpreter
"""

from __future__ import annotations

import ctypes
import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
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
    sys.modules["matplotlib"] = None  # type: ignore[assignment] # which whoever looks for it does not find
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


NO_READER = "|"  # for `warm_started`: a pipe that nobody reads


@contextmanager
def warm_started(
    arguments: Sequence[str],
    folder: Path,
    output: str | None = "output",
    errors: str | None = "errors",
    environment: Mapping[str, str] | None = None,
    *,
    terminal: str = "",
    ignored: Sequence[int] = (),
) -> Iterator[BaseProcess]:
    """The same while it runs, with those variables besides; it is killed in the end. It leads a process group, and has
    the signals of a program in the foreground of a shell.

    Args:
        output: where its standard output goes, from `folder`; None closes it.
        errors: the same of standard error.
        terminal: that of its own session, and its standard streams.
        ignored: signals that it is started to ignore.
    """
    given = (list(arguments), folder, (output, errors), environment or {}, terminal, ignored)
    process = start_context().Process(target=_started, args=given)
    assert start_process(process)
    try:
        yield process
    finally:
        if process.is_alive():
            with suppress(ProcessLookupError):  # it leads none yet, or has ended
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _started(
    arguments: list[str],
    folder: Path,
    streams: Sequence[str | None],
    environment: Mapping[str, str],
    terminal: str,
    ignored: Sequence[int],
) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    os.setsid() if terminal else os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if terminal:  # whose first that is opened is the session's
        os.dup2(os.open(terminal, os.O_RDWR), 0)
    become_a_program(*(_descriptor(terminal or name or os.devnull) for name in streams))
    sys.stdout, sys.stderr = _stream(1, streams[0]), _stream(2, streams[1])
    weakref.finalize._registry.clear()  # type: ignore[attr-defined] # what the server has imported ends with that
    ctypes.pythonapi.Py_Exit(_status_of(arguments))


def _status_of(arguments: Sequence[str]) -> int:
    """As the interpreter finds it, which says what it was that ended the program."""
    try:
        _do(*arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def _descriptor(name: str) -> int:
    if name == NO_READER:
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open(name, os.O_RDWR if name.startswith("/dev/") else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def _stream(number: int, name: str | None) -> io.TextIOWrapper:
    """As the interpreter opens it."""
    if name is None:
        os.close(number)
        return None  # type: ignore[return-value]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    file = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - to the end
    encoding, errors = os.environ.get("PYTHONIOENCODING", "utf-8"), "strict" if number == 1 else "backslashreplace"
    lines = number == 2 or file.isatty()
    return io.TextIOWrapper(file, encoding, errors, line_buffering=lines, write_through=unbuffered)
