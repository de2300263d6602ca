"""Where a worker's step goes: `hogwild bench --profile`.

In each worker the calls that the loop is made of are wrapped in timers, and the same loop runs; a normal run has no
timers at all. Each moment counts once, for the innermost of these that is running:

    schedule   a ticket, the generators' seeds, pointing the replica at its slot
    batch      the samples of the batch
    forward    the loss
    backward   its gradient
    wait       for locks, for the version to read, for one's turn
    commit     gathering the gradient, clipping, the optimizer's step, buffers
    telemetry  the check that loss and gradient are finite, the journal, digests and copies for evaluation
    rest       what is left of the loop

What the timers cost is seen by running with and without them, in turn.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hogwild.bench.measure import BenchTeller, Case, Spread, TellProgress, silent
from hogwild.bench.ours import Together, train_rule
from hogwild.bench.work import StartLine, Work, share
from hogwild.errors import ArgumentError
from hogwild.shared.locks import Lock
from hogwild.workers.loop import train_loop
from hogwild.workers.worker import Worker

PHASES = ("schedule", "batch", "forward", "backward", "wait", "commit", "telemetry", "rest")
_now = time.perf_counter_ns
_FIRST_GUESS = 20  # updates, to see how long one takes
_COPIED = 128 << 20  # bytes; far more than a cache holds
_COPIES = 7
# Tensors of the model's size that a step must read and write at least: parameter and gradient read, parameter
# written; Adam's two moments read and written too.
_PASSES = {"sgd": 3, "adam": 7}


class Clock:
    """Nanoseconds spent in each phase, for one worker."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was spent."""
        self.spent = dict.fromkeys(PHASES, 0)
        self._open = ["rest"]
        self._since = _now()

    def stop(self) -> dict[str, int]:
        """What was spent until now."""
        self.enter("rest")
        return self.spent

    def enter(self, phase: str) -> None:
        """From now on time counts for that phase."""
        now = _now()
        self.spent[self._open[-1]] += now - self._since
        self._open.append(phase)
        self._since = now

    def leave(self) -> None:
        """From now on time counts for the phase before."""
        now = _now()
        self.spent[self._open.pop()] += now - self._since
        self._since = now

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted for that phase."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.enter(phase)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return call


class TimedLock:
    """A lock; waiting for it counts."""

    def __init__(self, clock: Clock, lock: Lock) -> None:
        self._clock = clock
        self._lock = lock

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock."""
        self._clock.enter("wait")
        taken = self._lock.acquire(blocking)
        self._clock.leave()
        return taken

    def release(self) -> None:
        """Let it go."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: Any) -> None:
        self.release()


def _logged(phase: str) -> str:
    """What a row calls it; `batch` is a row's own."""
    return f"in_{phase}"


@dataclass(frozen=True)
class Timed:
    """The work of each worker: wait for the others, then train as ever, under a clock. What it showed is logged."""

    line: StartLine

    def __call__(self, worker: Worker) -> None:
        """Do it."""
        clock = Clock()
        timed = _wrap(worker, clock)
        self.line.wait(worker.index)
        clock.restart()
        train_loop(worker)
        worker.info.log(**{_logged(phase): spent for phase, spent in clock.stop().items()})
        for owner, name in timed:  # it refers back, and would keep the shared memory open
            delattr(owner, name)


def _wrap(worker: Worker, clock: Clock) -> list[tuple[Any, str]]:
    """Time the calls of one worker; returns what now stands before its methods.

    The objects are the worker's own, so nobody else is timed.
    """
    control, journal = worker.control, worker.seat.state.journal
    calls: list[tuple[Any, str, str]] = [
        (worker, "claim", "schedule"),
        (worker, "read", "schedule"),
        (worker, "batch", "batch"),
        (worker.rule, "gradient", "backward"),
        (control, "wait_until", "wait"),
        (worker, "commit", "commit"),
        (worker.seat, "finite", "telemetry"),
        (worker.seat, "due", "telemetry"),
        (worker.seat, "observe", "telemetry"),
        (journal, "write", "telemetry"),
    ]
    if worker.rule.combines:  # a worker that waits makes versions too
        calls += [(worker.rule, "_step_shard", "commit"), (worker.rule, "_complete", "commit")]
    for owner, name, phase in calls:
        setattr(owner, name, clock.timed(phase, getattr(owner, name)))
    control.ticket_lock = TimedLock(clock, control.ticket_lock)
    control.commit_lock = TimedLock(clock, control.commit_lock)
    assert worker.task.loss is not None
    worker.task = replace(worker.task, loss=clock.timed("forward", worker.task.loss))
    return [(owner, name) for owner, name, _ in calls]


@dataclass(frozen=True)
class Profile:
    """Where the steps of one rule go.

    Attributes:
        case, rule, kind, workers: what ran.
        updates: in each run.
        phases: seconds of a worker's time per update, by phase.
        step: all phases together.
        timers: time per update with timers over that without, each pair from one repeat.
        parameters: elements of the model.
        traffic: bytes that a commit must read and write at least; None where gradients are sparse.
        copy_rate: bytes that this machine reads and writes per second when it copies, one thread.
    """

    case: Case
    rule: str
    kind: str
    workers: int
    updates: int
    phases: Mapping[str, Spread]
    step: Spread
    timers: Spread
    parameters: int
    traffic: int | None
    copy_rate: float

    @property
    def limit(self) -> float | None:
        """Seconds that a commit takes at least, at the copy rate."""
        return None if self.traffic is None else self.traffic / self.copy_rate


@dataclass(frozen=True)
class ProfilePlan:
    """What is profiled: each case with each (rule, kind, workers); `allow` as for `hogwild.bench.ours`."""

    cases: Sequence[Case]
    runners: Sequence[tuple[str, str, int]]
    allow: int
    repeats: int
    seconds: float

    @property
    def measurements(self) -> int:
        """How many there will be; all repeats of a runner are one."""
        return len(self.cases) * len(self.runners)


def copy_rate(cores: int = 1) -> float:
    """Bytes read and written per second by so many threads that copy what no cache holds; median of a few copies."""
    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.zeros_like(source)
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        seconds = []
        for _ in range(_COPIES):
            began = time.perf_counter()
            target.copy_(source)
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return 2 * _COPIED / statistics.median(seconds)


def profiles(plan: ProfilePlan, rate: float, tell: TellProgress = silent) -> Iterator[Profile | str]:
    """Profile case by case; in place of a runner that was refused, a line that says why."""
    say = BenchTeller(plan.measurements, tell)
    for case in plan.cases:
        work = Work(case.problem, share(case.problem.generate()), case.batch_size, case.optimizer, 0)
        for runner in plan.runners:
            name = f"{runner[0]}, {runner[2]} {runner[1]}"
            with say.one(f"{case.name}: {name}"):
                try:
                    yield profile_case(plan, case, work, runner, rate)
                except ArgumentError as error:
                    yield f"{case.name}: {name}: {error}"


def profile_case(plan: ProfilePlan, case: Case, work: Work, runner: tuple[str, str, int], rate: float) -> Profile:
    """Profile one runner on one case, whose data is in `work`; `rate` is that of a copy.

    Raises:
        ArgumentError: it was refused.
    """
    rule, kind, workers = runner
    divisor = 2 * plan.allow

    def run(batches: int, seed: int, *, timed: bool) -> tuple[float, dict[str, float]]:
        """(seconds per update of a worker's time, the same by phase)."""
        program = (Timed if timed else Together)(StartLine(workers))
        mine = replace(work, batches=batches, seed=seed)
        done, _ = train_rule(mine, rule, kind, workers, plan.allow, program, recheck=0.0)
        spent = {
            phase: sum(row[_logged(phase)] for row in done.logged) / 1e9 / batches for phase in PHASES if done.logged
        }
        return done.seconds * workers / batches, spent

    guess, _ = run(-(-_FIRST_GUESS // divisor) * divisor, 0, timed=False)
    updates = max(1, math.ceil(plan.seconds * workers / guess / divisor)) * divisor
    pairs = [(run(updates, repeat, timed=False), run(updates, repeat, timed=True)) for repeat in range(plan.repeats)]
    phases = {phase: Spread.over([timed[1][phase] for _, timed in pairs]) for phase in PHASES}
    parameters = sum(parameter.numel() for parameter in case.problem.model().parameters())
    return Profile(
        case=case,
        rule=rule,
        kind=kind,
        workers=workers,
        updates=updates,
        phases=phases,
        step=Spread.over([sum(timed[1].values()) for _, timed in pairs]),
        timers=Spread.over([timed[0] / plain[0] for plain, timed in pairs]),
        parameters=parameters,
        traffic=None if case.problem.sparse else 4 * parameters * _PASSES[case.optimizer],
        copy_rate=rate,
    )
