"""Alarms: who waits for a version sleeps until it is made, and is woken by whoever makes it.

    who waits for version v     word of v := a number of its own → fence → is v there? → if not: sleep while it is that
    who makes version v         head := v → fence → is the word of v 0? → if not: word := 0, wake who sleeps there

A processor may look at one word before its own store into another is seen; the fence keeps the two in order, on both
sides, so that one of the two sees what the other did. The number is new each time: else a second one who comes to wait
would let the first, who was about to sleep as it was rung, sleep after all. Who is to wake may die before: every sleep
has a limit.

The words lie in shared memory, and the kernel watches them (futex, Linux); elsewhere `works` is False, and who waits
looks again and again.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import time
from collections.abc import Callable

PLACES = 64  # words; who waits for versions that share one is woken with the others, and sleeps on
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER = _NUMBERS.get(platform.machine(), 0) if sys.platform == "linux" and sys.maxsize > 2**32 else 0  # of futex
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_NUMBERED = 2**31 - 2  # the bits of a clock that make a number of one's own; never 0, for the last bit is set beside
_LOW = 0 if sys.byteorder == "little" else 4  # where the half of a word is that the kernel looks at


class Timespec(ctypes.Structure):
    """A time as the C library takes it."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _call() -> Callable[..., int]:
    """`syscall`, with the arguments of futex."""
    call = ctypes.CDLL(None).syscall
    number, address = ctypes.c_long, ctypes.c_void_p
    call.argtypes = [number, address, number, number, address, address, number]
    call.restype = number
    return call


def _is_heard() -> bool:
    """True where the kernel lets this program call it."""
    word = ctypes.c_int(0)
    return bool(_NUMBER) and _call()(_NUMBER, ctypes.addressof(word), _WAKE, _ALL, None, None, 0) == 0


class Alarms:
    """The words of a run, as one worker, or the courier or the parent, sees them: `PLACES` of them.

    Attributes:
        fence: taken and let go between saying something and looking at what another says.
    """

    works = _is_heard()

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words
        self.fence = threading.Lock()  # its own: to take it and let it go is what orders loads after stores
        self._limit = Timespec()
        if self.works:
            self._futex = _call()
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(words)) + _LOW

    def sleep(self, version: int, is_over: Callable[[], bool], seconds: float) -> None:
        """Sleep until that version is made, or less: for at most so many seconds, and not at all where the wait is
        over."""
        place = version % PLACES
        mine = self._words[place] = time.monotonic_ns() & _NUMBERED | 1
        with self.fence:
            pass
        if not is_over():
            self._limit.seconds, self._limit.nanoseconds = divmod(int(seconds * 1e9), 10**9)
            self._futex(_NUMBER, self._address + 8 * place, _WAIT, mine, ctypes.addressof(self._limit), None, 0)

    def wake(self, version: int) -> None:
        """Wake who waits for that version; called once everybody can see that it is there."""
        with self.fence:
            pass
        if self._words[version % PLACES]:
            self._ring(version % PLACES)

    def asleep(self) -> int:
        """About how many sleep: words may have stayed behind, and those who wait for one version share one."""
        return PLACES - self._words.tolist().count(0)

    def rouse(self, most: int = PLACES) -> None:
        """Wake some of those who sleep, whatever they wait for: there is something else to do, for about so many.

        A word may have stayed behind with nobody asleep; so those are counted whom the kernel woke.
        """
        with self.fence:
            pass
        for place in range(PLACES):
            if self._words[place]:
                most -= self._ring(place)
                if most <= 0:
                    return

    def _ring(self, place: int) -> int:
        """How many slept there."""
        self._words[place] = 0
        return self._futex(_NUMBER, self._address + 8 * place, _WAKE, _ALL, None, None, 0)
