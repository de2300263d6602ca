"""Who writes in a folder: the process that signs its lock file, and whether it is still there.

The file is removed when the writer is done with the folder, however that ended. Where the process was killed it stays.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from hogwild.errors import printable

_MAX_BYTES = 1 << 16
_SAME = 1.0  # seconds between two ways to tell when one process began


@dataclass(frozen=True)
class Writer:
    """Who writes in a folder, or did when it was killed, as its lock file says.

    Attributes:
        pid: the process.
        host: its machine.
        lives: whether it still does; None where this is another machine, which cannot tell.
    """

    pid: int
    host: str
    lives: bool | None


def writer_named(path: Path) -> Writer | None:
    """Who signed a lock file; None where it is not there, or names nobody."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        pid, host, began = int(found["pid"]), printable(str(found["host"])), float(found["began"])
        return Writer(pid, host, _lives(pid, began) if host == platform.node() else None)
    return None


def _lives(pid: int, began: float) -> bool:
    """Whether that process, and no later one of its number, is there."""
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < _SAME and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return False


@cache
def _began(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def signed(descriptor: int) -> int:
    """The same open lock file, in which this process is named."""
    pid = os.getpid()
    text = json.dumps({"pid": pid, "began": _began(pid), "host": platform.node()})
    with suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    return descriptor
