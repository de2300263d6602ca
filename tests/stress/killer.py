"""A thread that kills one worker of a run at a random instant."""

from __future__ import annotations

import random
import threading
import time

import psutil

import hogwild


def worker_processes() -> list[psutil.Process]:
    """The living workers of this process's runs: grandchildren, by way of the fork server."""
    servers = [
        child for child in psutil.Process().children() if "multiprocessing.forkserver" in " ".join(child.cmdline())
    ]
    return [worker for server in servers for worker in server.children()]


class Killer(threading.Thread):
    """Kills one worker at a random instant of the `longest` seconds after the run has begun."""

    def __init__(self, choices: random.Random, longest: float) -> None:
        super().__init__(name="killer")
        self.delay = choices.uniform(0, longest)
        self.choices = choices
        self.began = threading.Event()
        self.killed = 0

    def begin(self, progress: hogwild.Progress) -> None:
        """The run's first report."""
        self.began.set()

    def run(self) -> None:
        self.began.wait()
        time.sleep(self.delay)
        for worker in self.choices.sample(found := worker_processes(), len(found)):
            try:
                worker.kill()
                self.killed += 1
                return
            except psutil.NoSuchProcess:
                continue
