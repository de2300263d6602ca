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
        return Writer(pid, host, _lives(pid, began, found.get("born")) if host == platform.node() else None)
    return None


def _lives(pid: int, began: float, born: object) -> bool:
    """Whether that process, and no later one of its number, is there."""
    try:
        process, own = psutil.Process(pid), _born(pid)
        same = born == own if born and own else abs(process.create_time() - began) < _SAME
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return False


@cache
def _began(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def _born(pid: int) -> str | None:
    """When a process began, in ticks since a boot that has a name, where Linux tells: when it did by the clock is
    computed anew each time from how the clock stands, and another moment once that has been set."""
    try:
        boot, process = Path("/proc/sys/kernel/random/boot_id").read_text(), Path(f"/proc/{pid}/stat").read_text()
        return f"{boot.strip()} {process.rpartition(')')[2].split()[19]}"  # after the name, which may hold anything
    except (OSError, IndexError, ValueError):
        return None


def signed(descriptor: int) -> int:
    """The same open lock file, in which this process is named."""
    pid = os.getpid()
    text = json.dumps({"pid": pid, "began": _began(pid), "born": _born(pid), "host": platform.node()})
    with suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    return descriptor
