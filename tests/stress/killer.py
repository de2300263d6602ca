"""A thread that kills one worker of a run at a random instant."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import psutil


def worker_processes() -> list[psutil.Process]:
    """The living workers of this process's runs: grandchildren, by way of the fork server."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                found += child.children()
    return found


class Killer(threading.Thread):
    """Inside, kills one worker at a random instant of the `longest` seconds after the first worker has come.

    It looks for workers itself: a run may be over before it reports that it has begun.
    """

    def __init__(self, choices: random.Random, longest: float) -> None:
        super().__init__(name="killer")
        self.delay = choices.uniform(0, longest)
        self.choices = choices
        self.over = threading.Event()
        self.killed = 0

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not worker_processes():
            if self.over.wait(0.001):
                return
        if self.over.wait(self.delay):
            return
        for worker in self.choices.sample(found := worker_processes(), len(found)):
            try:
                worker.kill()
                self.killed += 1
                return
            except psutil.NoSuchProcess:
                continue
