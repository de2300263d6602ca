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
import threading
import time
from functools import cache
from types import TracebackType

from hogwild.shared.alarms import Timespec

BYTES = 64  # room for one; glibc and musl need 40
_PATIENCE = 2.0  # seconds in which the kernel must have seen that a thread has ended
_SLICE = 0.05  # seconds of a wait after which Python looks whether a signal has come
_SHARED, _ROBUST, _CHECKED = 1, 1, 2  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST, PTHREAD_MUTEX_ERRORCHECK

# On x86-64 stores become visible in the order in which they were made; other processors may reorder.
ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64")
_MAY = sys.platform == "linux" and ORDERED_STORES and sys.maxsize > 2**32

try:
    _brief, _long = ctypes.PyDLL(None), ctypes.CDLL(None)
    # Those that wait for nobody keep the interpreter, and take a third of the time.
    _trylock, _unlock = _brief.pthread_mutex_trylock, _brief.pthread_mutex_unlock
    _consistent, _destroy = _brief.pthread_mutex_consistent, _brief.pthread_mutex_destroy
    _timedlock, _init = _long.pthread_mutex_timedlock, _brief.pthread_mutex_init
    _begin, _end = _brief.pthread_mutexattr_init, _brief.pthread_mutexattr_destroy
    _set_shared, _set_robust = _brief.pthread_mutexattr_setpshared, _brief.pthread_mutexattr_setrobust
    _set_type = _brief.pthread_mutexattr_settype
except (AttributeError, OSError):  # another C library than those of Linux
    _MAY = False
else:
    for _function in (_trylock, _unlock, _consistent, _destroy, _begin, _end):
        _function.argtypes = [ctypes.c_void_p]
    for _function in (_set_shared, _set_robust, _set_type):
        _function.argtypes = [ctypes.c_void_p, ctypes.c_int]
    for _function in (_timedlock, _init):
        _function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


def _must(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


class Mutex:
    """An exclusive lock, held by a thread of any process that maps its memory.

    Args:
        memory: `BYTES` of it, which were prepared once, aligned to 8 bytes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory  # stays mapped as long as this
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def prepare(self) -> None:
        """Make a lock that nobody holds of its bytes; once, before anybody else sees them.

        Raises:
            OSError: the C library cannot.
        """
        attributes = ctypes.create_string_buffer(BYTES)
        place = ctypes.addressof(attributes)
        _must(_begin(place))
        _must(_set_shared(place, _SHARED))
        _must(_set_robust(place, _ROBUST))
        _must(_set_type(place, _CHECKED))
        _must(_init(self._address, place))
        _must(_end(place))

    @staticmethod
    @cache
    def works() -> bool:
        """True where the C library has such locks, and the kernel lets go of them: tried, once, with a thread that ends
        with one, which is to the kernel what a process is."""
        if not _MAY:
            return False
        mutex = Mutex(memoryview(bytearray(BYTES)))
        try:
            mutex.prepare()
        except OSError:
            return False
        ends = threading.Thread(target=mutex.acquire)
        ends.start()
        ends.join()  # that it has ended is told to Python before the kernel knows
        until = time.monotonic() + _PATIENCE
        while not mutex.acquire(blocking=False):
            if time.monotonic() > until:
                return False
            time.sleep(0.0001)
        mutex.release()
        _destroy(mutex._address)
        return True

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
        end = Timespec(*divmod(time.time_ns() + int(_SLICE * 1e9), 10**9))
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
