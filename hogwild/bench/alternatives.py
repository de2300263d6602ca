"""What one would use instead: each as its documentation has it, in its best ordinary form.

All of them run in fresh processes, so that one's threads and memory do not burden the next:

    serial     for batch in shuffled(data): zero_grad, backward, step          one process, one torch thread
    cut        the same over batches that lie cut in memory before the clock   one process, one torch thread
    apart      as cut, each on a model of its own: nothing is shared           W processes or threads
    intra-op   as serial                                                       one process, W torch threads
    recipe     the same over a shared model, DataLoader and optimizer each     W processes, one torch thread each
    ddp        the same over DistributedDataParallel on gloo                   W processes, one torch thread each
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hogwild.bench.children import in_children
from hogwild.bench.links import Host
from hogwild.bench.problems import Batch
from hogwild.bench.work import (
    ContenderError,
    Measurement,
    StartLine,
    StateArrays,
    Work,
    judge_states,
    private_copy,
    state_of,
)


@dataclass(frozen=True)
class Report:
    """What one process of an alternative did; times are CLOCK_MONOTONIC seconds, memory is in bytes."""

    began: float
    ended: float
    batches: int
    samples: int
    state: StateArrays
    pss: int | None
    looks: list[tuple[float, StateArrays]] = field(default_factory=list)


# --- the contenders, called in the parent


def serial(work: Work) -> Measurement:
    """The loop that one would write by hand."""
    return _outcome(work, _serial, 1, 1)


def cut(work: Work) -> Measurement:
    """The same loop without what it does besides training: one epoch's batches are cut before, and gone round."""
    return _outcome(work, _cut, 1, 1)


def apart(work: Work, *, workers: int, kind: str) -> Measurement:
    """As many of these loops at once, which share nothing: what the machine gives, whatever trains."""
    if kind == "threads":
        return _outcome(work, _apart_in_threads, 1, workers)
    return _outcome(work, _cut, workers, 1)


def intra_op(work: Work, *, workers: int) -> Measurement:
    """The hand-written loop, torch's operations split over threads."""
    return _outcome(work, _serial, 1, workers)


def recipe(work: Work, *, workers: int) -> Measurement:
    """The Hogwild recipe of PyTorch's documentation (notes on multiprocessing, and examples/mnist_hogwild)."""
    return _outcome(work, _recipe, workers, work.problem.model().share_memory())


def ddp(work: Work, *, workers: int, hosts: Sequence[Host] = ()) -> Measurement:
    """DistributedDataParallel on gloo, as in its tutorial; the processes meet by a file, so no port is fixed. Each may
    be at a host of its own."""
    with tempfile.TemporaryDirectory(prefix="hogwild-bench-") as folder:
        return _outcome(work, _ddp, workers, (Path(folder) / "store", StartLine(workers), hosts))


def _outcome(work: Work, program: Callable[..., Report], processes: int, extra: object) -> Measurement:
    called = time.monotonic()
    line = StartLine(processes)
    # In most programs torch does not ask for huge pages.
    reports: list[Report] = in_children(program, processes, (work, line, extra), work.limit, asks=False)
    began = min(report.began for report in reports)
    states = [*reports[0].looks, (0.0, reports[0].state)]
    *curve, (_, loss) = judge_states(work, states)
    return Measurement(
        batches=sum(report.batches for report in reports),
        samples=sum(report.samples for report in reports),
        seconds=max(report.ended for report in reports) - began,
        startup_seconds=began - called,
        loss=loss,
        pss=tuple(report.pss for report in reports if report.pss is not None),
        curve=tuple(curve),
    )


# --- the programs, called in the children


def _serial(rank: int, work: Work, line: StartLine, threads: int) -> Report:
    torch.set_num_threads(threads)
    torch.manual_seed(work.seed)
    model, data = work.problem.model(), private_copy(work.data)
    return _train(rank, work, line, model, _shuffled(data, work.batch_size), work.batches)


def _cut(rank: int, work: Work, line: StartLine, threads: int) -> Report:
    torch.set_num_threads(threads)
    torch.manual_seed(work.seed + rank)
    model, batches = work.problem.model(), cycle(_epoch_cut(work))
    return _train(rank, work, line, model, batches, _part(work, rank, line.workers))


def _apart_in_threads(rank: int, work: Work, line: StartLine, workers: int) -> Report:
    """The same in threads of one process, which are told of as one."""
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    ready = StartLine(workers)
    models = [work.problem.model() for _ in range(workers)]
    epochs = [_epoch_cut(work) for _ in range(workers)]
    line.wait(rank)

    def train(number: int) -> Report:
        batches = cycle(epochs[number])
        return _train(number, work, ready, models[number], batches, _part(work, number, workers))

    with ThreadPoolExecutor(workers) as threads:
        first, *others = threads.map(train, range(workers))
    reports = [first, *others]
    return replace(
        first,
        began=min(report.began for report in reports),
        ended=max(report.ended for report in reports),
        batches=sum(report.batches for report in reports),
        samples=sum(report.samples for report in reports),
        pss=None,
    )


def _recipe(rank: int, work: Work, line: StartLine, model: nn.Module) -> Report:
    torch.set_num_threads(1)
    torch.manual_seed(work.seed + rank)
    loader = DataLoader(TensorDataset(*private_copy(work.data)), batch_size=work.batch_size, shuffle=True)
    return _train(rank, work, line, model, _epochs(loader), _part(work, rank, line.workers))


_kept: list[object] = []


def _ddp(rank: int, work: Work, line: StartLine, meeting: tuple[Path, StartLine, Sequence[Host]]) -> Report:
    """The process group is kept until the process ends, and never destroyed.

    A gloo thread takes the GIL to free the work of an all-reduce (`~AsyncWork`, `~ThreadLocalState`). Should the last
    reference to the group go at that moment, which the reducer of the model holds, its destructor waits for that
    thread with the GIL held, and neither goes on: seen in gdb, torch 2.13. So nobody leaves before all are done.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    store, finish, hosts = meeting
    if hosts:
        hosts[rank].move_in()
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=line.workers)
    dataset = TensorDataset(*private_copy(work.data))
    sampler: DistributedSampler[Batch] = DistributedSampler(dataset, seed=work.seed)
    loader = DataLoader(dataset, batch_size=work.batch_size, sampler=sampler)
    model = DistributedDataParallel(work.problem.model())
    _kept.append(model)
    report = _train(rank, work, line, model, _epochs(loader, sampler), _part(work, rank, line.workers))
    finish.wait(rank)
    return report


def _train(rank: int, work: Work, line: StartLine, model: nn.Module, batches: Iterator[Batch], number: int) -> Report:
    optimizer = work.problem.optimizer(work.optimizer, work.batch_size)(list(model.parameters()))
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    looks: list[tuple[float, StateArrays]] = []
    mine: Iterator[Batch] = islice(batches, number)
    if work.looks and rank == 0:
        mine = _looking(mine, max(1, number // work.looks), inner, looks)
    began = line.wait(rank)
    done, samples = _steps(model, optimizer, work.problem.loss, mine)
    ended = time.monotonic()
    if done != number:
        raise ContenderError(f"process {rank} trained on {done} of {number} batches")
    looks = [(seconds - began, state) for seconds, state in looks]
    return Report(began, ended, done, samples, state_of(inner), _pss(), looks)


def _steps(
    model: nn.Module, optimizer: Optimizer, loss: Callable[..., torch.Tensor], batches: Iterable[Batch]
) -> tuple[int, int]:
    """The loop itself; returns batches and samples trained on."""
    done = samples = 0
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += 1
        samples += len(batch[0])
    return done, samples


def _shuffled(data: Batch, batch_size: int) -> Iterator[Batch]:
    """Batches without end; a new order every epoch."""
    samples = len(data[0])
    while True:
        order = torch.randperm(samples)
        for start in range(0, samples, batch_size):
            rows = order[start : start + batch_size]
            yield tuple(tensor[rows] for tensor in data)


def _epoch_cut(work: Work) -> list[Batch]:
    """The batches of one epoch, cut."""
    data = private_copy(work.data)
    return list(islice(_shuffled(data, work.batch_size), -(-len(data[0]) // work.batch_size)))


def _epochs(loader: DataLoader[Batch], sampler: DistributedSampler[Batch] | None = None) -> Iterator[Batch]:
    """A loader's batches without end."""
    for epoch in count():
        if sampler is not None:
            sampler.set_epoch(epoch)
        yield from loader


def _looking(
    batches: Iterator[Batch], every: int, model: nn.Module, looks: list[tuple[float, StateArrays]]
) -> Iterator[Batch]:
    """The batches; keeps the model's state before the first and after every so many."""
    for number, batch in enumerate(batches):
        if number % every == 0:
            looks.append((time.monotonic(), state_of(model)))
        yield batch
    looks.append((time.monotonic(), state_of(model)))


def _part(work: Work, rank: int, workers: int) -> int:
    """Batches of one of several workers; together they train on all of them."""
    return work.batches // workers + (rank < work.batches % workers)


def _pss() -> int | None:
    pss: int | None = getattr(psutil.Process().memory_full_info(), "pss", None)
    return pss
