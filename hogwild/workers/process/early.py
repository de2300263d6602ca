"""The fork server as a fork of this program, where that has done nothing yet: torch is imported once for both.

    import torch, and what workers need → fork → the server: forget what is the program's → serve
                                               → the program: read its files, train, …

A server that is started by itself imports the same a second time, in 1.7 s of processor time and 200 MiB of memory.
Python's collector of cycles would look at all of that again and again: while it is imported, in each worker, which so
gets copies of it, and at the end of the program. So it rests meanwhile, and passes by what was imported.

Invariant: the server has modules that were imported, and nothing that was made, opened or set since: no thread, no
file, no signal handler, no lock that is held, and none of the caller's code.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from multiprocessing import util
from pathlib import Path
from typing import NoReturn

from hogwild.workers.held_signals import INTERRUPTING
from hogwild.workers.process import spawn
from hogwild.workers.surroundings.interpreter import likely_kind

_LISTS = "/proc/self/fd", "/dev/fd"  # of this process's open files
_show_warning = warnings.showwarning  # as it is before the command line changes it


def start_server_early(kind: str) -> None:
    """Import torch; and start the fork server, where workers of that kind are likely to be processes: by a fork, where
    this program had not imported torch yet. Called before it reads any code of its caller's.

    Raises:
        ArgumentError: this process may start no other.
    """
    nothing_done = "torch" not in sys.modules and threading.active_count() == 1  # a fork has none of the others
    import_torch()
    from hogwild.workers.surroundings.allocator import ask_for_huge_pages  # which imports torch

    ask_for_huge_pages()
    if nothing_done:
        fork_server(kind)
    elif likely_kind(kind) == "processes":
        spawn.start_server()


def import_torch() -> None:
    """Import torch, with what would interrupt that held back meanwhile.

    It tries to import numpy and goes on without it, whatever is raised there: an interruption would be lost, and numpy
    be broken (torch 2.13, numpy 2.4).
    """
    first = "torch" not in sys.modules
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    try:
        with imported_for_good() if first else nullcontext():
            import torch  # noqa: F401
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def imported_for_good() -> Iterator[None]:
    """Inside, no cycles are looked for; afterwards, none among what there is then, which stays to the end of the
    process. For programs of ours, before they run any code of the caller's."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def fork_server(kind: str) -> None:
    """Let this program's fork server be a fork of it, where workers of that kind are likely to be processes. Called
    where it has imported modules, and done nothing else.

    Raises:
        ArgumentError: this process may start no other.
    """
    if likely_kind(kind) == "processes" and spawn.start_context().get_start_method() == "forkserver":
        with imported_for_good():
            import hogwild.workers.process.preloaded  # noqa: F401 - before the fork, so that both have it

        program, fork = os.getpid(), None
        try:
            with _forked():
                spawn.start_server()
        except _InTheFork as raised:
            fork = raised
        except BaseException:
            if os.getpid() != program:  # it must not go on as this program
                os._exit(1)
            raise
        if fork is not None:  # nothing that is raised there has to do with it
            fork.serve()


class _InTheFork(BaseException):
    """Raised in the fork, so that it leaves what this program is in the middle of: its locks, and what is set for now.

    Args:
        told: what a new Python would be told to do, and the arguments of that.
        descriptors: of files that it needs at these numbers.
    """

    def __init__(self, told: Sequence[str], descriptors: Sequence[int]) -> None:
        self._on_ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the program's to act on
        self._command, *self._arguments = told
        above = max(descriptors) + 1
        self._files = [(number, fcntl.fcntl(number, fcntl.F_DUPFD, above)) for number in descriptors]

    def serve(self) -> NoReturn:
        """Forget what exec would have ended, but for what was imported; then do it."""
        status = 1
        try:
            for number, aside in self._files:
                os.dup2(aside, number)
            _close_all_but({0, 1, 2, *(number for number, _ in self._files)})
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it has imported what it imports
            if self._on_ctrl_c != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            warnings.showwarning = _show_warning
            sys.argv = ["-c", *self._arguments]
            exec(self._command, {"__name__": "__main__"})
        except SystemExit:
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


@contextmanager
def _forked() -> Iterator[None]:
    """Inside, this program starts a fork server by a fork."""
    original = util.spawnv_passfds

    def start(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        told = arguments[arguments.index("-c") + 1 :]
        if "multiprocessing.forkserver" not in told[0]:
            return original(path, arguments, descriptors)
        sys.stdout.flush()  # or the fork would write it too
        sys.stderr.flush()
        with warnings.catch_warnings():  # of threads: numpy has some, and sees to them in a fork
            warnings.simplefilter("ignore", DeprecationWarning)
            number = os.fork()
        if not number:
            raise _InTheFork(told, descriptors)
        return number

    util.spawnv_passfds = start  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = original


def _close_all_but(descriptors: Collection[int]) -> None:
    """Those that are open, where the system lists them: some versions of Python close a range number by number, and a
    limit may be a billion."""
    for folder in _LISTS:
        with suppress(OSError):
            for number in sorted({int(one.name) for one in Path(folder).iterdir()} - {*descriptors}):
                with suppress(OSError):  # that of the list itself
                    os.close(number)
            return
    for low, high in pairwise([-1, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]):
        if low + 1 < high:  # CPython closes all files where there is none between
            os.closerange(low + 1, high)
