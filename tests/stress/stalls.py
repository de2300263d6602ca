"""Runs a command on a machine that seems far too busy: again and again a random process of it stops for a moment.

    python tests/stress/stalls.py pytest -n auto tests/run
    python tests/stress/stalls.py --longest 0.2 --every 0.05 hogwild run digits --update ordered

What takes for granted that nobody is stopped between two lines goes wrong now and then; here it does so sooner. All
threads of a process stop together (SIGSTOP). The command itself is left alone, and its exit status is passed on.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

_RUNNING = (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)  # others are stopped by somebody else, or have ended


def under_stalls(command: Sequence[str], longest: float, every: float) -> tuple[int, int]:
    """(exit status of the command, how often one of its processes was stopped).

    Args:
        command: a program and its arguments.
        longest: seconds of a stop at most; most are much shorter.
        every: seconds from the end of a stop to the next, on average.
    """
    choices, stops = random.Random(), 0
    with subprocess.Popen(command) as program:
        while program.poll() is None:
            time.sleep(choices.expovariate(1 / every))
            stops += _one_stops(program.pid, choices, longest * choices.random() ** 3)
        return program.returncode, stops


def _one_stops(ancestor: int, choices: random.Random, seconds: float) -> bool:
    """Stop one that descends from this process for so long; False where there is none."""
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(ancestor).children(recursive=True)
        running = [one for one in found if one.status() in _RUNNING]
        if running:
            one = choices.choice(running)
            one.suspend()
            try:
                time.sleep(seconds)
            finally:
                one.resume()
            return True
    return False


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds of a stop at most (default: 2)")
    parser.add_argument("--every", type=float, default=0.4, help="seconds between two stops, on average (default: 0.4)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("no command given")
    status, stops = under_stalls(given.command, given.longest, given.every)
    print(f"{stops} stops", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
