"""Concurrent gradients of one shared parameter, counted: what `backward()` loses, and what `grad` does not.

Two workers differentiate one vector of parameters, over and over, at the same time. Every gradient is exactly
one in every value (d/dp of p · 1), and sums of ones below 2²⁴ are exact in float32, so whatever is missing in
the end was lost.

    worker 0 ─ backward ─┐
                         ├─► one .grad, in memory both can write
    worker 1 ─ backward ─┘

Invariant: no sum can exceed what was computed, unless something is applied twice. What does not hold: that
each addition survives. `.grad += g` reads, adds and writes, and between read and write the other may write.

Shapes: K values in the parameter.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.multiprocessing
from torch import Tensor, nn

WORKERS = 2
VALUES = 300_000
"""K: so many that a `backward()`, which lets go of the interpreter's lock, takes longer than another thread needs to
wake up; with 1,000, threads run one after the other, and meet where one is stopped by chance."""

FEW = 1000
"""K where it is the order of additions that counts, and many passes show more of that than many values."""

MEET = 50 * VALUES
"""Additions after which the workers wait for each other; on a busy machine one may else be done before the other
runs."""

KINDS = ("one Parameter", "replicas", "processes")
"""Threads on the same Parameter; threads, each with a Parameter of its own over the same memory; processes."""


@dataclass(frozen=True)
class Shared:
    """The memory that all workers see.

    Attributes:
        value: the parameter's data, float32, [K].
        grad: its `.grad`, float32, [K].
        factor: one factor per worker, float32, [WORKERS, K]; the gradient of worker w is `factor[w]`.
        total: one sum per worker for what `grad` returns, float32, [WORKERS, K].
        gate: how often each worker has waited for the others, int32, [WORKERS].
    """

    value: Tensor
    grad: Tensor
    factor: Tensor
    total: Tensor
    gate: Tensor

    def parameter(self) -> nn.Parameter:
        """A new Parameter over this memory, with the shared `.grad`."""
        made = nn.Parameter(self.value.detach())
        made.grad = self.grad.detach()
        return made


def shared(factors: tuple[float, float] = (1.0, 1.0), values: int = VALUES) -> Shared:
    """Zeros to work on, in memory that other processes can map."""
    factor = torch.tensor(factors[:WORKERS]).unsqueeze(1).expand(WORKERS, values).contiguous()
    tensors = [torch.zeros(values), torch.zeros(values), factor, torch.zeros(WORKERS, values)]
    gate = torch.zeros(WORKERS, dtype=torch.int32)
    return Shared(*(one.share_memory_() for one in (*tensors, gate)))  # type: ignore[no-untyped-call]


def cores() -> int:
    """How many cores this process may use; on one, workers take turns and seldom meet."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accumulate(memory: Shared, worker: int, count: int, parameter: nn.Parameter | None = None) -> None:
    """`backward()`, which adds into the shared `.grad`."""
    p, factor = _mine(memory, worker, parameter)
    for _ in _together(memory, worker, count):
        (p * factor).sum().backward()  # type: ignore[no-untyped-call]


def collect(memory: Shared, worker: int, count: int, parameter: nn.Parameter | None = None) -> None:
    """`torch.autograd.grad`, whose result this worker adds into a sum of its own."""
    p, factor = _mine(memory, worker, parameter)
    for _ in _together(memory, worker, count):
        memory.total[worker] += torch.autograd.grad((p * factor).sum(), p)[0]


def step_and_zero(memory: Shared, worker: int, count: int, parameter: nn.Parameter | None = None) -> None:
    """The usual training step on a shared `.grad`: add to it, apply it, clear it."""
    p, factor = _mine(memory, worker, parameter)
    assert p.grad is not None
    for _ in _together(memory, worker, count):
        (p * factor).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            p.sub_(p.grad)
        p.grad.zero_()


def _mine(memory: Shared, worker: int, parameter: nn.Parameter | None) -> tuple[nn.Parameter, Tensor]:
    """The Parameter that this worker differentiates, and its factor."""
    return memory.parameter() if parameter is None else parameter, memory.factor[worker]


def _together(memory: Shared, worker: int, count: int) -> Iterator[int]:
    """The numbers below `count`. Every MEET additions the workers wait for each other, so that they do meet.

    Raises:
        TimeoutError: another worker has not come for a minute.
    """
    torch.set_num_threads(1)
    passes = MEET // len(memory.value)
    for done in range(count):
        if done % passes == 0:
            memory.gate[worker] += 1
            deadline = time.monotonic() + 60
            while int(memory.gate.min()) < int(memory.gate[worker]):
                if time.monotonic() > deadline:
                    raise TimeoutError("the other worker of the race has not come for a minute")
                time.sleep(0)
        yield done


def race(work: Callable[..., None], kind: str, count: int, memories: Iterable[Shared]) -> Iterator[Shared]:
    """Do the work in two workers of a kind at the same time, `count` passes each, on one memory after another.

    Yields each memory when both are done with it. What either worker raises is raised.
    """
    with _executor(kind) as workers:
        for memory in memories:
            parameter = memory.parameter() if kind == "one Parameter" else None
            for done in [workers.submit(work, memory, index, count, parameter) for index in range(WORKERS)]:
                done.result()
            yield memory


def _executor(kind: str) -> Executor:
    if kind == "processes":
        # fork() after autograd has run is refused by torch, or deadlocks.
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        return ProcessPoolExecutor(WORKERS, mp_context=context)
    return ThreadPoolExecutor(WORKERS)


@dataclass(frozen=True)
class Loss:
    """How many additions (one value, one pass) were computed, and how many of them are missing."""

    computed: int
    missing: float

    def __str__(self) -> str:
        share = f" ({self.missing / self.computed:.1e})" if self.missing else ""
        return f"{self.missing:,.0f} of {self.computed:,} additions lost{share}"


def lost(work: Callable[..., None], kind: str, count: int, attempts: int) -> Loss:
    """Race until something is lost, at most `attempts` times; all attempts are counted."""
    computed, missing = 0, 0.0
    for memory in race(work, kind, count, (shared() for _ in range(attempts))):
        got = memory.total.double().sum() if work is collect else memory.grad.double().sum()
        computed += WORKERS * count * VALUES
        missing += WORKERS * count * VALUES - float(got)
        if missing:
            break
    return Loss(computed, missing)


def applied(kind: str, count: int, attempts: int) -> list[float]:
    """The share of the computed gradient that `step_and_zero` applied, exactly 1 when nothing raced.

    One number per attempt: three, and then more until one of them is not 1, at most `attempts`.
    """
    shares: list[float] = []
    for memory in race(step_and_zero, kind, count, (shared() for _ in range(attempts))):
        shares.append(float(-memory.value.double().sum()) / (WORKERS * count * VALUES))
        if len(shares) >= 3 and set(shares) != {1.0}:
            break
    return shares


def distinct(work: Callable[..., None], kind: str, count: int, runs: int) -> int:
    """How many different results (in bits) `runs` equal runs have, whose workers' gradients are 0.1 and 1/3."""
    found = set()
    for memory in race(work, kind, count, (shared((0.1, 1 / 3), FEW) for _ in range(runs))):
        result = memory.total.sum(dim=0) if work is collect else memory.grad
        found.add(result.numpy().tobytes())
    return len(found)
