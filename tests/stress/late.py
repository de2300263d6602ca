"""Runs a command in which workers of hogwild are late: the first of each crew comes a moment after the others, and now
and then one that is to claim a ticket waits.

    python tests/stress/late.py pytest -n auto tests/run
    python tests/stress/late.py --first 1 --often 0.1 hogwild run digits --update ordered

A test that counts on a certain worker, on its being the first, or on how tickets are shared goes wrong sooner. Unlike a
process that is stopped, a thread is late alone. Programs that the command starts are told by `PYTHONPATH`.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_VARIABLE = "LATE_WORKERS"  # "first often longest"
_MODULE = "hogwild.workers.worker"


def late(command: Sequence[str], first: float, often: float, longest: float) -> int:
    """The exit status of a command.

    Args:
        command: a program and its arguments.
        first: seconds by which the worker 0 of each crew comes late.
        often: the probability that a worker waits before it claims a ticket.
        longest: seconds of such a wait at most.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text("import late\n\nlate.plant()\n")
        path = os.pathsep.join([folder, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        told = {"PYTHONPATH": path, _VARIABLE: f"{first} {often} {longest}"}
        return subprocess.call(list(command), env=os.environ | told)


def plant() -> None:
    """Called as a program starts: its workers will be late."""
    sys.meta_path.insert(0, _Planter())


class _Planter(MetaPathFinder):
    """Finds the module of the workers, and changes it once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the finder of Python itself, for that module alone."""
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                _make_late(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _make_late(module: Any) -> None:
    first, often, longest = map(float, os.environ[_VARIABLE].split())
    choices, worker = random.SystemRandom(), module.Worker
    run, claim = worker.run, worker.claim

    def late_run(self: Any) -> None:
        if self.index == 0:
            time.sleep(first)
        run(self)

    def late_claim(self: Any, *given: Any) -> Any:
        if choices.random() < often:
            time.sleep(longest * choices.random())
        return claim(self, *given)

    worker.run, worker.claim = late_run, late_claim


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=float, default=0.25, help="seconds that worker 0 is late (default: 0.25)")
    parser.add_argument("--often", type=float, default=0.02, help="of all claims, those that wait (default: 0.02)")
    parser.add_argument("--longest", type=float, default=0.1, help="seconds of such a wait at most (default: 0.1)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("no command given")
    return late(given.command, given.first, given.often, given.longest)


if __name__ == "__main__":
    sys.exit(main())
