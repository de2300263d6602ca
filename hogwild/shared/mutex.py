"""A lock in shared memory that its holder's death releases: a mutex of the C library, robust and shared by processes.

Taking it and letting it go are one locked instruction each where nobody else wants it, which is a fifth of the time of
two system calls. Who dies with it, however, is found by the kernel in a list that each thread keeps; the next one who
takes it is told, and says that the lock is good again: what it protects is looked at by who comes next, here as with
any lock of this package.

That list is of addresses, so no thread may keep a lock whose memory goes. A signal may raise between taking a lock and
knowing of it: that thread may take it again, and lets all of them go before the memory does.

Used on x86-64 alone, where a locked instruction also keeps loads after the stores before it, as a system call does; on
Linux, for others have no robust mutexes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

BYTES = 64  # room for one; glibc and musl need 40
_SLICE = 0.05  # seconds of a wait after which Python looks whether a signal has come
_SHARED, _ROBUST, _CHECKED = 1, 1, 2  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST, PTHREAD_MUTEX_ERRORCHECK
_MAY = sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64") and sys.maxsize > 2**32


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _functions(library: ctypes.CDLL, *names: str) -> list[Callable[..., int]]:
    """Functions of one address that return an error number."""
    found: list[Any] = [getattr(library, name) for name in names]
    for function in found:
        function.argtypes = [ctypes.c_void_p]
    return found


if _MAY:
    # Those that wait for nobody keep the interpreter, and take a third of the time.
    _trylock, _unlock, _consistent = _functions(
        ctypes.PyDLL(None), "pthread_mutex_trylock", "pthread_mutex_unlock", "pthread_mutex_consistent"
    )
    _library = ctypes.CDLL(None)
    _timedlock = _library.pthread_mutex_timedlock
    _timedlock.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _must(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


class Mutex:
    """An exclusive lock, held by a thread of any process that maps its memory.

    Args:
        memory: `BYTES` of it, which were prepared once, aligned to 8 bytes.
    """

    works = _MAY

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory  # stays mapped as long as this
        self._address = _address(memory)

    @staticmethod
    def prepare(memory: memoryview) -> None:
        """Make a lock that nobody holds of those bytes; once, before anybody else sees them.

        Raises:
            OSError: the C library cannot.
        """
        attributes = ctypes.create_string_buffer(BYTES)
        _must(_library.pthread_mutexattr_init(attributes))
        _must(_library.pthread_mutexattr_setpshared(attributes, _SHARED))
        _must(_library.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _must(_library.pthread_mutexattr_settype(attributes, _CHECKED))
        _must(_library.pthread_mutex_init(ctypes.c_void_p(_address(memory)), attributes))
        _must(_library.pthread_mutexattr_destroy(attributes))

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock. False: somebody has it, and the caller does not wait."""
        found = _trylock(self._address)
        while found in (errno.EBUSY, errno.ETIMEDOUT):
            if not blocking:
                return False
            found = self._wait()
        if found == errno.EOWNERDEAD:
            found = _consistent(self._address)
        if found and found != errno.EDEADLK:  # that: this thread has it, and was interrupted as it took it
            _must(found)
        return True

    def _wait(self) -> int:
        """Try for a while to take it, without the interpreter."""
        end = _Timespec(*divmod(time.time_ns() + int(_SLICE * 1e9), 10**9))
        found: int = _timedlock(self._address, ctypes.addressof(end))
        return found

    def release(self) -> None:
        """Let it go; where this thread does not have it, nothing."""
        _unlock(self._address)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _unlock(self._address)
