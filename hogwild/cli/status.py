"""What a failure is to the shell: one line or a traceback on standard error, and an exit status."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from hogwild.config import RunConfig
from hogwild.errors import (
    ArgumentError,
    NodeError,
    NonFiniteError,
    NotReproducible,
    RunDirectoryError,
    Terminated,
    WorkerError,
    flag_of,
    printable,
    without_controls,
)

_NAMES = "|".join(one.name for one in fields(RunConfig) if one.metadata and one.name != "name")
_SETTING = re.compile(rf"\b({_NAMES})=('[^']*'(?:(?:, | or | and )'[^']*')*)")
_BESIDE = re.compile(r", and change=\{'(\w+)': .*\} beside it \((--set .*)\)$")
_CHANGE = re.compile(r"change=\{.*\} \((--set .*)\)$")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
DONE, FAILED_CHECK, WRONG_ARGUMENT, FAILED_TRAINING = 0, 1, 2, 3
INTERRUPTED = 128 + signal.SIGINT


def status_of(command: Callable[[], int]) -> int:
    """The exit status of a command; what it raised is told on standard error."""
    _open_streams()
    with redirect_stderr(_BestEffort(sys.stderr)):
        return _told_status_of(command)


def _told_status_of(command: Callable[[], int]) -> int:
    try:
        with _signals_as_exit(), _short_warnings():
            status = _ended(command)
            sys.stdout.flush()
            return status
    except (ArgumentError, RunDirectoryError) as error:
        _tell(" ".join(str(error).split()))
        return FAILED_TRAINING if _is_of_a_disk(error.__cause__ or error.__context__) else WRONG_ARGUMENT
    except (WorkerError, NodeError, NonFiniteError, NotReproducible) as error:
        _tell("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return FAILED_TRAINING
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno in _UNWRITABLE:  # what is written to files is told otherwise
            _give_up_stdout()
            _tell(f"standard output cannot be written: {error.strerror}")
        elif error.errno == errno.ENAMETOOLONG:
            _tell(f"{printable(str(error.filename), 60)!r} can be no path: {error.strerror}")
            return WRONG_ARGUMENT
        else:
            traceback.print_exc()
        return FAILED_TRAINING
    except Exception:
        traceback.print_exc()
        return FAILED_TRAINING


def _is_of_a_disk(error: BaseException | None) -> bool:
    """True where a disk is full, or takes nothing for another reason; safetensors tells it in words."""
    return error.errno in _UNWRITABLE if isinstance(error, OSError) else "(os error " in str(error)


def _ended(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE


def _open_streams() -> None:
    """Open those of the standard streams that are closed, or the next file would be taken for them; and let none fail
    over a letter that its encoding has not, or write to a terminal of no width."""
    for side in ("COLUMNS", "LINES"):  # some terminals say that they have none
        if not os.environ.get(side, "1").isdecimal() or int(os.environ.get(side, "1")) < 1:
            del os.environ[side]
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


class _BestEffort:
    """Standard error, where what cannot be written is left out: no run ends for nobody can be told how it stands."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it, if that is possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Let it be seen, if that is possible."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _give_up_stdout() -> None:
    """Nobody reads on, or nothing can be written; the interpreter must not fail again when it flushes."""
    _give_up([sys.stdout.fileno()])


def _give_up(streams: Sequence[int]) -> None:
    for number in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def as_typed(message: str) -> str:
    """A message whose first line names settings as the command line has them: --update ordered for update='ordered'.
    Numbers stay, for lr=0.1 is what --set and --group take."""
    first, newline, rest = message.partition("\n")
    first = _BESIDE.sub(lambda found: f"; {found[2]} in place of {flag_of(found[1])} changes it from there on", first)
    first = _CHANGE.sub(r"\1", first)
    return _SETTING.sub(lambda found: f"{flag_of(found[1])} {found[2].replace(chr(39), '')}", first) + newline + rest


def _tell(message: str) -> None:
    sys.stderr.write(f"hogwild: {without_controls(as_typed(message))}\n")


@contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit in the main thread, so that what was trained is saved; and so does SIGHUP, by
    which the end of a terminal is told, unless it is ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number == signal.SIGHUP:
            _give_up(terminals)  # nothing can be written there any more
        raise Terminated(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Inside, a warning is one line, without the place in the code that gave it, and what is logged looks alike."""

    def show(
        message: Warning | str,
        category: type[Warning],  # noqa: ARG001
        filename: str,  # noqa: ARG001
        lineno: int,  # noqa: ARG001
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        _tell(f"warning: {message}")

    told, log = _Told(), logging.getLogger("hogwild")
    log.addHandler(told)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        log.removeHandler(told)


class _Told(logging.Handler):
    """Tells what the package logs as the command tells all else."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it to standard error."""
        _tell(f"{record.levelname.lower()}: {record.getMessage()}")
