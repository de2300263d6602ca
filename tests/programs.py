"""Programs of their own that start in milliseconds: forked by a server that has torch imported, and has not trained.

For tests that kill a program, or fork one. What starting the interpreter does is for those that start one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

from hogwild.workers.spawn import start_context, start_server, without_main


@dataclass(frozen=True)
class Program:
    """A running program, and what it prints."""

    process: BaseProcess
    output: TextIO

    def ended(self) -> int:
        """Wait for its end; returns its exit status, negative where a signal ended it."""
        self.process.join()
        return self.process.exitcode


@contextmanager
def started(source: str, *arguments: str, errors: Path) -> Iterator[Program]:
    """A program of that text with those arguments, and `errors` for its standard error; it is killed in the end."""
    start_server()
    context = start_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(source, arguments, sender, errors))
    with without_main():
        process.start()
    sender.close()
    with receiver, os.fdopen(os.dup(receiver.fileno()), encoding="utf-8") as output:
        try:
            yield Program(process, output)
        finally:
            process.kill()
            process.join()


def _run(source: str, arguments: tuple[str, ...], sender: Connection, errors: Path) -> None:
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 2)
    os.dup2(sender.fileno(), 1)
    sender.close()
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdout.flush()
