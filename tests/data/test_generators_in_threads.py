"""Threads of one program ask for torch's generator while others seed and set it: nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import torch
from torch import nn

from hogwild.data.generators import torch_state

SCRIPT = textwrap.dedent(
    """
    import gc, threading, time
    import torch
    from hogwild.data.generators import torch_state
    from hogwild.data.seeding import preserved_generators, seed_generators

    class Cycle:  # garbage that only the collector finds, and that hands the GIL on when it is found
        def __init__(self):
            self.itself = self

        def __del__(self):
            time.sleep(0)

    def ask():
        for n in range(500):
            gc.set_threshold(1 + n % 5)  # the collector comes one or a few objects later
            Cycle()
            torch_state()
        done.set()

    def seed():
        while not done.is_set():
            seed_generators(3)

    def lend():
        while not done.is_set():
            with preserved_generators():
                pass

    done = threading.Event()
    threads = [threading.Thread(target=body) for body in (ask, seed, lend)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
)


def test_whoever_asks_for_the_state_keeps_nobody_who_seeds():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_state_is_that_which_torch_gives():
    draws = lambda: None, lambda: torch.rand(3), lambda: torch.randn(1), lambda: nn.functional.dropout(torch.ones(9))
    for draw in draws:
        draw()
        assert torch.equal(torch_state(), torch.get_rng_state())
