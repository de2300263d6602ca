"""What becomes of a program that ends while a thread of it asks the store."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore
from warm_pythons import warm_started

PROGRAM = """
import itertools, os, sys, threading, time
from contextlib import suppress
from datetime import timedelta
from torch.distributed import TCPStore
from hogwild.errors import NodeError
from hogwild.nodes import store_calls

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)

heard = threading.Event()

def ask():
    with suppress(NodeError):
        for number in itertools.count():
            with store_calls.of_store():
                store.get(str(number))
            if number == 3:
                heard.set()

threading.Thread(target=ask, daemon=True).start()
heard.wait()
"""
OF_A_FORK = """
store_calls._PATIENCE = 1000.0
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with store_calls.of_store():
    pass
"""


def _hosted() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))


def test_a_program_ends_between_two_calls():
    """A thread that came back afterwards would abort it, before Python 3.14."""
    store = _hosted()
    command = [sys.executable, "-c", PROGRAM, str(store.port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for number in itertools.count():
            store.set(str(number), "")
            if number > 3 and process.poll() is not None:
                break
            time.sleep(0.02)
        assert (process.returncode, process.communicate()[1]) == (0, "")


@pytest.mark.parametrize("program", [PROGRAM, PROGRAM + OF_A_FORK], ids=["itself", "a fork of it"])
def test_a_store_that_answers_nobody_does_not_keep_it(program, tmp_path):
    store = _hosted()
    with warm_started(["-c", program, str(store.port)], tmp_path) as process:
        for number in range(4):
            store.set(str(number), "")
        process.join(60)
        assert process.exitcode == 0
