"""The number of torch's threads, lent to trainings and given back when the last of them ends.

torch keeps a number for each thread and one for threads to come, with which a thread begins. Who sets its own sets the
other too, so that a thread born during one training has that training's number, and would put it back after its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hogwild.errors import warn_caller


class TorchThreads:
    """The number as it was before the first of several trainings that set it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._borrowers = 0
        self._before = 0
        self._owner: int | None = None  # the process that computed

    def leave_lost(self) -> None:
        """Ahead of a training: let torch compute with threads that are there.

        A fork of a program that has trained has torch's number of threads and none of them, and torch would wait for
        them for ever. There it computes with one from now on, which is mentioned.
        """
        if self._owner is None:
            self._owner = os.getpid()
        if self._owner != os.getpid() and torch.get_num_threads() > 1:
            self._borrowers = 0
            torch.set_num_threads(1)
            warn_caller("this process was forked from one that had trained; from now on torch computes with one thread")

    def lend(self) -> None:
        """A training is going to set it, here or in threads of its own."""
        with self._lock:
            if not self._borrowers:
                self._before = _of_threads_to_come()
            self._borrowers += 1

    def give_back(self) -> None:
        """A training has ended: this thread, and threads to come, compute with as many as before."""
        with self._lock:
            self._borrowers -= 1
            torch.set_num_threads(self._before)

    @contextmanager
    def set_to(self, number: int) -> Iterator[None]:
        """Inside, torch computes with so many in this thread."""
        self.lend()
        try:
            torch.set_num_threads(number)
            yield
        finally:
            self.give_back()


def _of_threads_to_come() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


torch_threads = TorchThreads()
