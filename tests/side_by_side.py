"""Several things done at once in one program, in threads, and waiting for one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def at_once(*bodies: Callable[[], Any]) -> list[Any]:
    """What each returned or raised, each in a thread of its own."""
    found: list[Any] = [None] * len(bodies)

    def call(number: int) -> None:
        try:
            found[number] = bodies[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def within(seconds: float, so: Callable[[], Any], otherwise: str = "it does not become so") -> None:
    """Wait until that is so; fail where it is not within those seconds."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.001)
