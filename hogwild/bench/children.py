"""Processes for the alternatives, started as this package's workers are: from the fork server, or by spawn.

parent ──program, rank, arguments──▶ child            a child that raises, dies or is late ends all of them;
       ◀── its report, or a traceback ──              none is left when this returns or raises
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing  # noqa: F401 - teaches multiprocessing to pass shared tensors

from hogwild.bench.work import ContenderError, NotFinishedError
from hogwild.workers.process.spawn import begin_with_parent, make_process, start_context, start_process
from hogwild.workers.surroundings.allocator import refuse_huge_pages

Channel = connection.Connection


def in_children(
    program: Callable[..., Any], processes: int, arguments: Sequence[Any], limit: float, *, asks: bool = True
) -> list[Any]:
    """Call `program(rank, *arguments)` in so many processes; returns what each returned, by rank.

    Where torch `asks` for huge pages, as it does in worker processes, it gets them.

    Raises:
        ContenderError: one of them raised or died.
        NotFinishedError: they took over `limit` seconds together.
    """
    context = start_context()
    children: list[BaseProcess] = []
    channels: list[Channel] = []
    try:
        for rank in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            channels.append(receiver)
            child = make_process(_main, (program, rank, arguments, sender, asks), daemon=False)
            if not start_process(child):
                raise ContenderError("the fork server was killed")
            children.append(child)
            sender.close()
        return _gather(children, channels, time.monotonic() + limit, limit)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.join()
            child.close()
        for channel in channels:
            channel.close()


def _gather(children: Sequence[BaseProcess], channels: Sequence[Channel], deadline: float, limit: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(children):
        missing = [rank for rank in range(len(children)) if rank not in found]
        waited_for = [item for rank in missing for item in (channels[rank], children[rank].sentinel)]
        if not connection.wait(waited_for, max(0.0, deadline - time.monotonic())):
            raise NotFinishedError(f"did not finish: ended after {limit:.0f} s, before it had done its work")
        for rank in missing:
            if channels[rank].poll():
                found[rank] = _received(children[rank], channels[rank])
            elif not children[rank].is_alive() and not channels[rank].poll():
                raise ContenderError(_death(children[rank]))
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    return [found[rank] for rank in range(len(children))]


def _received(child: BaseProcess, channel: Channel) -> Any:
    try:
        done, result = channel.recv()
    except (EOFError, OSError):  # it closed the pipe, or died in the middle of a message
        child.join(1.0)
        raise ContenderError(_death(child)) from None
    if not done:
        raise ContenderError(result)
    return result


def _death(child: BaseProcess) -> str:
    return f"a process ended without a word, exit code {child.exitcode}"


# --- in the child


def _main(program: Callable[..., Any], rank: int, arguments: Sequence[Any], channel: Channel, asks: bool) -> None:
    begin_with_parent()
    if not asks:
        refuse_huge_pages()
    try:
        channel.send((True, program(rank, *arguments)))
    except BaseException:
        channel.send((False, traceback.format_exc().strip()))
    channel.close()
    os._exit(0)  # no destructor is waited for; see `hogwild.bench.alternatives._ddp`
