"""Threads of one program ask for torch's generator while others seed and set it: nobody waits for ever."""

from __future__ import annotations

import os
import random
import textwrap
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from side_by_side import at_once
from torch import nn
from warm_pythons import warm_python

from hogwild.data import seeding
from hogwild.data.generators import torch_state
from hogwild.data.seeding import loans_of_this_thread, preserved_generators, read_at_rest

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


def test_whoever_asks_for_the_state_keeps_nobody_who_seeds(tmp_path):
    done = warm_python(["-c", SCRIPT], tmp_path, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_state_is_that_which_torch_gives():
    draws = lambda: None, lambda: torch.rand(3), lambda: torch.randn(1), lambda: nn.functional.dropout(torch.ones(9))
    for draw in draws:
        draw()
        assert torch.equal(torch_state(), torch.get_rng_state())


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (seeding, "torch_state"),
        (np.random, "get_state"),
        (random, "getstate"),
        (torch, "set_rng_state"),
        (np.random, "set_state"),
        (random, "setstate"),
    ],
)
def test_an_interruption_while_they_are_lent_leaves_them_at_rest(place: Any, name: str, monkeypatch: Any) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(place, name, interrupted)
        with pytest.raises(KeyboardInterrupt), preserved_generators():
            pass
    assert loans_of_this_thread() == 0
    assert at_once(lambda: read_at_rest(lambda: 1, 0)) == [1]


def test_who_lends_them_next_counts_anew() -> None:
    seeding._lending.begun += 1  # as an interruption might leave it
    with preserved_generators():
        assert loans_of_this_thread() == 1
        with preserved_generators():
            assert loans_of_this_thread() == 2
    assert at_once(lambda: read_at_rest(lambda: 1, 0)) == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_who_is_forked_while_another_thread_has_them_does_not_wait_for_it() -> None:
    def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
            child = os.fork()
        if not child:
            code = 1
            try:
                free = seeding._lending.lock.acquire(timeout=20)
                code = 0 if free and read_at_rest(lambda: 1, 0) else 2
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with preserved_generators():
        assert at_once(fork) == [0]
        assert loans_of_this_thread() == 1
