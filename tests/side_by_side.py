"""Several things done at once in one program, in threads."""

from __future__ import annotations

import threading
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
