"""How a process is started: by `forkserver` on Linux and by `spawn` elsewhere, never by a bare fork.

The fork server has torch imported, so a worker starts in milliseconds. What is started here does not import the
caller's `__main__`.

A process of ours begins deaf to Ctrl-C, which reaches all of a terminal's programs and is the parent's to act on: it
would end in a traceback whatever it was in the middle of. Its main says by `begin` what it does about later ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import connection, resource_tracker, spawn, util
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hogwild.errors import ArgumentError
from hogwild.workers.held_signals import HeldSignals
from hogwild.workers.surroundings.interpreter import may_start_processes

_PRELOAD = "hogwild.workers.process.preload"
SAFE = "PYTHONSAFEPATH"
CALLERS_SAFE = "HOGWILD_CALLERS_PYTHONSAFEPATH"
"""What the caller's environment has in place of the former, while the fork server starts."""
_DEAF = "_begins_deaf"  # which attribute says so
_AHEAD = ("torch._dynamo", "pytest", "numba")  # a step of torch's own, a module of tests, a kernel import them
SERVER_LOST = 255  # what multiprocessing takes for the exit status of all that a fork server forked, when that dies
start_lock = threading.Lock()
"""Held while a process is being started: what is set for the start is the whole program's."""


def refuse_removed_folder() -> None:
    """Refuse to work where the current folder is gone: torch cannot be loaded there, and no process be started.

    Raises:
        ArgumentError: it is.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ArgumentError("the current folder was removed; change to one that is there (cd, os.chdir)") from None


def start_server() -> None:
    """Let the fork server begin to import torch, ahead of the first worker. Does nothing where there is none.

    A signal that comes meanwhile is heard afterwards: a server that is told half of what it needs prints a traceback.

    Raises:
        ArgumentError: this process may start no other.
    """
    if not may_start_processes():
        raise ArgumentError(
            "kind 'processes' in a daemonic process, as the workers of a run or of a pool are, which may start no "
            "other process; use kind='threads'"
        )
    if start_context().get_start_method() == "forkserver":
        from multiprocessing import forkserver

        with HeldSignals() as signals, start_lock, _as_the_server_starts():
            signals.hold()
            with _preparing_without("sys_path"):  # which Python 3.14 imports by
                _ensure_running(forkserver)


def _ensure_running(forkserver: Any) -> None:
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # it is that of the program which this one was forked from
        _leave_server(forkserver)
        forkserver.ensure_running()
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        raise ArgumentError(
            f"{tempfile.gettempdir()}, the folder for temporary files, has too long a name for the socket that "
            f"processes are started by; set TMPDIR to a shorter one, or use kind='threads'"
        ) from error


def _leave_server(forkserver: Any) -> None:
    """Let this process forget the server; the program that it belongs to keeps it."""
    server = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


@contextmanager
def _as_the_server_starts() -> Iterator[None]:
    """Inside, a Python that is started does not look for modules in the current folder.

    The server is started by `python -c`, which would: a folder named hogwild or torch there would be taken for the
    package. So would one on the caller's own path, which workers get once they are forked. Ctrl-C is held back until
    the server, which inherits that, has imported what it imports; it would print a traceback.
    """
    before = os.environ.get(SAFE)
    try:
        os.environ |= {SAFE: "1", CALLERS_SAFE: before or ""}
        with _deaf(), _told_by_a_flag() if sys.flags.ignore_environment else nullcontext():
            yield
    finally:
        os.environ.pop(CALLERS_SAFE, None)
        if before is None:
            os.environ.pop(SAFE, None)
        else:
            os.environ[SAFE] = before


@contextmanager
def _told_by_a_flag() -> Iterator[None]:
    """Inside, a Python that is started is told so by -P, for under -E it does not read its environment."""
    original = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    util._args_from_interpreter_flags = lambda: [*original(), "-P"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        util._args_from_interpreter_flags = original  # type: ignore[attr-defined]


@contextmanager
def _deaf() -> Iterator[None]:
    """Inside, what is started inherits that Ctrl-C is held back."""
    resource_tracker.ensure_running()  # which lets go of it, where what is started finds none and starts it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start_context() -> BaseContext:
    """The way in which processes are started here."""
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    ahead = [name for name in _AHEAD if name in sys.modules]  # the workers of this program may need it, too
    context.set_forkserver_preload([*ahead, _PRELOAD])  # which lets go of the signals that are held back
    return context


def make_process(
    main: Callable[..., None], arguments: tuple[Any, ...], name: str = "", *, daemon: bool = True
) -> BaseProcess:
    """A process of ours, to be started by `start_process`; the first that `main(*arguments)` does there is `begin`."""
    context: Any = start_context()
    process: BaseProcess = context.Process(target=main, args=arguments, name=name or None, daemon=daemon)
    setattr(process, _DEAF, True)
    return process


def begins_deaf(process: object) -> bool:
    """True for what `make_process` has made, in any process."""
    return hasattr(process, _DEAF)


def begin(on_ctrl_c: Any = signal.SIG_IGN) -> None:
    """Called first in a process of ours: from here on it handles Ctrl-C so. One that has come before is dropped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, on_ctrl_c)


def begin_with_parent() -> None:
    """`begin`, in a process that leaves Ctrl-C to its parent and ends at once when that has ended."""
    begin()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def start_process(process: BaseProcess) -> bool:
    """Start a process; False where the fork server died before it had told its number: it may have forked it.

    A signal that comes meanwhile is heard afterwards, for a fork server that is asked for half a process ends; where
    the caller is interrupted by it, the process is ended again.

    Raises:
        ArgumentError: the current folder was removed, or this process may start no other.
        OSError: it cannot be started.
    """
    refuse_removed_folder()
    start_server()
    try:
        with HeldSignals() as signals, start_lock, without_main(), _deaf():
            signals.hold()
            process.start()
    except (EOFError, ConnectionError):
        return False
    except RuntimeError as error:
        if "acknowledgement" in str(error):  # which Python 3.14 waits for
            return False
        raise
    except (KeyboardInterrupt, SystemExit):
        if process.pid is not None:
            process.kill()
            process.join()
        raise
    return True


def comes_to_its_end(pipe: connection.Connection, patience: float) -> bool:
    """True when nobody holds the writing end within so many seconds.

    The writing ends of its pipes are a process's alone, and the kernel closes them with it.
    """
    deadline = time.monotonic() + patience
    while not (ended := at_its_end(pipe)) and time.monotonic() < deadline:
        pipe.poll(0.01)
    return ended


def at_its_end(pipe: connection.Connection) -> bool:
    """True when nobody holds the writing end any more; what was written before is dropped."""
    while pipe.poll():
        if not os.read(pipe.fileno(), 1 << 16):
            return True
    return False


def without_main() -> AbstractContextManager[None]:
    """Inside, this thread starts processes that do not import the caller's `__main__`.

    The package brings what they need of it by value, so a script without a guard, a notebook and `python -` work.
    """
    return _preparing_without("init_main_from_name", "init_main_from_path")


@contextmanager
def _preparing_without(*names: str) -> Iterator[None]:
    """Inside, this thread starts processes that are not told these of what multiprocessing tells."""
    original = spawn.get_preparation_data
    me = threading.get_ident()

    def less(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == me:
            for one in names:
                data.pop(one, None)
        return data

    spawn.get_preparation_data = less
    try:
        yield
    finally:
        spawn.get_preparation_data = original
