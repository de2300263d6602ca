"""A file without a name, in memory where the system has such.

Linux has had them since 3.17, and Python asks for them where the C library that it was built with knew of them: glibc
2.27. Pythons that are to run on older systems were built with an older one, so the C library that is there is asked,
and else the kernel. Where there are none, or a sandbox forbids them, it is an unlinked temporary file: slower, and no
larger than the space in its folder, past which a write to its memory is a SIGBUS.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import tempfile
from contextlib import suppress

_NAME, _CLOSE_ON_EXEC = "hogwild", 1
_NUMBERS = {"x86_64": 319, "aarch64": 279}  # of memfd_create(2)


def nameless_file() -> tuple[int, str | None]:
    """Its descriptor, and the folder that it takes space in; None where it is in memory.

    Raises:
        OSError: there can be none.
    """
    if sys.platform == "linux":
        for way in (_by_python, _by_library, _by_kernel):
            with suppress(AttributeError, KeyError, OSError):
                return way(), None
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno()), folder


def space_in(folder: str) -> int:
    """Bytes that are free there."""
    return shutil.disk_usage(folder).free


def _by_python() -> int:
    create = getattr(os, "memfd_create")  # noqa: B009 - for some systems it is not declared
    descriptor: int = create(_NAME, _CLOSE_ON_EXEC)
    return descriptor


def _by_library() -> int:
    return _checked(ctypes.CDLL(None, use_errno=True).memfd_create(_NAME.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))


def _by_kernel() -> int:
    number = _NUMBERS[platform.machine() if sys.maxsize > 2**32 else ""]
    call = ctypes.CDLL(None, use_errno=True).syscall
    return _checked(call(ctypes.c_long(number), _NAME.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))


def _checked(descriptor: int) -> int:
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
