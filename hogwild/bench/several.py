"""Several machines, together, apart, and by DistributedDataParallel: `hogwild bench --nodes`. A gradient takes a wait
besides.

    for each number of machines and each delay of their links:
        repeat 0: together, with each staleness; apart, averaging; ddp → repeat 1: …

A machine is a process with a worker and a courier of its own; where links have a delay, at a host of its own (see
`hogwild.bench.links`). The ideal is machines ÷ pad: the network and everything else would take no time. One step of
DistributedDataParallel averages one gradient of each machine by one all-reduce, and counts as so many updates.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hogwild.bench.alternatives import ddp
from hogwild.bench.children import in_children
from hogwild.bench.links import Host, network
from hogwild.bench.measure import BenchTeller, Case, Spread, TellProgress, silent
from hogwild.bench.ours import train_rule
from hogwild.bench.padded import padded_work
from hogwild.bench.work import StartLine, Work, share
from hogwild.config import RunConfig
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.loopback import LOOPBACK, free_port
from hogwild.nodes.party import meet
from hogwild.rules.registry import SAME_BITS
from hogwild.workers.process.early import fork_server
from hogwild.workers.process.spawn import start_server
from hogwild.workers.worker import Worker

_LEAST_ROUNDS = 50  # gradients of each machine in a measurement, so that their start and end weigh little
AVERAGE_EVERY = 10  # updates of each machine, where they train apart, by `hogwild`
_LEAST_STEPS = 12  # of DistributedDataParallel, which starts and ends all at once
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_SILENCE = 30.0  # seconds; none is to be lost here


@dataclass(frozen=True)
class Crowd:
    """So many machines, `delay` seconds from each other, and every staleness that they are measured with."""

    nodes: int
    delay: float
    staleness: Sequence[int]


@dataclass(frozen=True)
class SeveralPlan:
    """What is measured: each case with each crowd, `pad` seconds in each gradient, with that compensation."""

    cases: Sequence[Case]
    crowds: Sequence[Crowd]
    pad: float
    repeats: int
    seconds: float
    compensation: str = RunConfig.compensation

    @property
    def measurements(self) -> int:
        """How many there will be: of each crowd with each staleness, apart, and by DistributedDataParallel."""
        return len(self.cases) * self.repeats * sum(len(crowd.staleness) + 2 for crowd in self.crowds)


@dataclass(frozen=True)
class SeveralResult:
    """What one crowd did with one staleness.

    Attributes:
        updates_per_second: measured on machine 0.
        ideal: machines ÷ pad.
        ddp: gradients a second of DistributedDataParallel, in the same repeats.
        over_ddp: the ratio, each from one repeat.
        averaging: updates a second of all machines, which train apart and average, in the same repeats.
    """

    case: Case
    nodes: int
    delay: float
    staleness: int
    updates_per_second: Spread
    ideal: float
    ddp: Spread
    over_ddp: Spread
    averaging: Spread


@dataclass(frozen=True)
class Started:
    """The work of each machine's worker: wait for the others, then train as ever, `opening` updates before the clock
    starts. The first τ + 1 gradients need no other machine, and the couriers meet meanwhile."""

    line: StartLine
    node: int
    opening: int

    def __call__(self, worker: Worker) -> None:
        """Do it, and log the first update that was timed, and how long it took from there on, seconds."""
        self.line.wait(self.node)
        update, began = 0, time.monotonic()
        while (ticket := worker.claim()) is not None:
            if update < self.opening:
                update, began = ticket.update, time.monotonic()
            worker.commit(ticket, worker.gradient(ticket, worker.read(ticket)))
        worker.info.log(first=update, seconds=time.monotonic() - began)


@dataclass(frozen=True)
class Way:
    """How machines train: by which rule, with which of its options, and how many updates before the clock starts; apart
    where they `average_every` so many."""

    rule: str
    opening: int
    options: Mapping[str, Any] = field(default_factory=dict)
    average_every: int | None = None


_APART = Way("hogwild", AVERAGE_EVERY, average_every=AVERAGE_EVERY)


def _together_at(staleness: int, compensation: str, batches: int) -> Way:
    """Together, with that staleness and compensation, on so many batches."""
    options = {"staleness": staleness, "compensation": compensation}
    return Way(SAME_BITS, min(2 * (staleness + 1), batches // 2), options)


def busy_at(nodes: int, pad_ms: float, delay_ms: float) -> int:
    """A staleness with which all machines are busy, where a gradient takes `pad_ms` and `delay_ms` to the others:
    (τ + 1) / (pad + delay) ≥ nodes / pad, and a round more, so that nobody waits for what is a moment late."""
    return math.ceil(nodes * (pad_ms + delay_ms) / pad_ms - 1e-9) - 1 + nodes


def measure_several(plan: SeveralPlan, tell: TellProgress = silent) -> Iterator[SeveralResult]:
    """Measure crowd by crowd.

    Raises:
        ArgumentError: slow links cannot be made here.
        ContenderError: a machine, or DistributedDataParallel, did not do its work.
    """
    with _unwarned():
        start_server()
    say = BenchTeller(plan.measurements, tell)
    for case in plan.cases:
        work = Work(case.problem, share(case.problem.generate()), case.batch_size, case.optimizer, 0)
        work = padded_work(work, plan.pad)
        for crowd in plan.crowds:
            yield from _measured(plan, case, work, crowd, say)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Inside, a fork server starts whose processes do not warn that a host has no name (torch's sockets do)."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "ERROR"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]
        else:
            os.environ[_LOG_LEVEL] = before


def _measured(plan: SeveralPlan, case: Case, work: Work, crowd: Crowd, say: BenchTeller) -> Iterator[SeveralResult]:
    nodes, title = crowd.nodes, f"{case.name}: {crowd.nodes} machines, {1e3 * crowd.delay:g} ms apart"
    rounds = max(_LEAST_ROUNDS, round(plan.seconds / plan.pad))
    steps = max(_LEAST_STEPS, round(plan.seconds / (plan.pad + 2 * crowd.delay)))
    found = _Speeds({staleness: [] for staleness in crowd.staleness})
    try:
        with network(nodes, crowd.delay) if crowd.delay else nullcontext() as made:
            hosts = made.hosts if made is not None else []
            for seed in range(plan.repeats):
                repeat = f"{title}: repeat {seed + 1} of {plan.repeats}"
                for staleness, speeds in found.together.items():
                    with say.one(f"{repeat}, together, staleness {staleness}"):
                        way = _together_at(staleness, plan.compensation, rounds * nodes)
                        speeds.append(_speeds(replace(work, batches=rounds * nodes, seed=seed), nodes, way, hosts)[0])
                with say.one(f"{repeat}, apart"):
                    found.apart.append(sum(_speeds(replace(work, batches=rounds, seed=seed), nodes, _APART, hosts)))
                with say.one(f"{repeat}, ddp"):
                    done = ddp(replace(work, batches=steps * nodes, seed=seed), workers=nodes, hosts=hosts)
                    found.ddp.append(done.batches / done.seconds)
    except (KeyboardInterrupt, SystemExit):
        yield from found.results(plan, case, crowd)
        raise
    yield from found.results(plan, case, crowd)


@dataclass(frozen=True)
class _Speeds:
    """What one crowd did: updates a second in each repeat, by DistributedDataParallel last of all."""

    together: dict[int, list[float]]
    apart: list[float] = field(default_factory=list)
    ddp: list[float] = field(default_factory=list)

    def results(self, plan: SeveralPlan, case: Case, crowd: Crowd) -> Iterator[SeveralResult]:
        """Those of the repeats that are whole; nothing where none is."""
        whole = len(self.ddp)
        for staleness, speeds in self.together.items() if whole else ():
            ratios = [one / other for one, other in zip(speeds, self.ddp, strict=False)]
            speed, other, over, average = map(Spread.over, (speeds[:whole], self.ddp, ratios, self.apart[:whole]))
            ideal = crowd.nodes / plan.pad
            yield SeveralResult(case, crowd.nodes, crowd.delay, staleness, speed, ideal, other, over, average)


def _speeds(work: Work, nodes: int, way: Way, hosts: Sequence[Host]) -> list[float]:
    """Updates a second that each machine saw: of all together, or of its own."""
    arguments = work, StartLine(nodes), way, hosts, free_port()
    speeds: list[float] = in_children(_machine, nodes, arguments, work.limit)
    return speeds


def _machine(node: int, work: Work, line: StartLine, way: Way, hosts: Sequence[Host], port: int) -> float:
    """Be one machine; returns updates a second."""
    torch.set_num_threads(1)
    if hosts:
        hosts[node].move_in()
    fork_server("processes")  # which torch is imported for already, and at that host
    invitation = Invitation(line.workers, hosts[0].address if hosts else LOOPBACK, port, node=node, timeout=_SILENCE)
    run, _ = train_rule(
        work,
        way.rule,
        "processes",
        1,
        1,
        Started(line, node, way.opening),
        options=way.options,
        party=meet(invitation),
        average_every=way.average_every,
    )
    (row,) = run.logged
    return (run.updates - row["first"]) / row["seconds"]
