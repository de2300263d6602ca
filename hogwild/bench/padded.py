"""Many workers on few cores: `hogwild bench --pad-ms`. A gradient takes a wait besides, as with an environment.

A waiting worker needs no core, so a small machine shows how many updates a second the harness itself allows with 1 to
64 workers. The ideal is workers ÷ pad: gradient, commit and everything else would take no time.

Beside what is measured stands what `hogwild.bench.model` predicts from a profile without the wait. After a wait caches
are cold and the core has slept, so a step takes more processor time than the model knows of: it is shown too.

Context switches are those of the workers while they train (getrusage), voluntary and involuntary, divided by updates;
the wait itself is one of them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from hogwild.bench.measure import BenchTeller, Case, Spread, TellProgress, silent
from hogwild.bench.model import StepModel
from hogwild.bench.ours import train_rule
from hogwild.bench.predict import fitted_model
from hogwild.bench.profile import ProfilePlan, profile_case
from hogwild.bench.work import StartLine, Work, share
from hogwild.errors import ArgumentError
from hogwild.rules.registry import rule_class
from hogwild.workers.loop import train_loop
from hogwild.workers.worker import Worker

_FIRST_ROUNDS = 4  # updates of each worker, to see how fast they go
_LEAST_ROUNDS = 12  # of each worker in a measurement, so that their start and end weigh little
_PROFILED = 0.3  # seconds of a profile
_LIMIT = 600.0  # seconds of one measurement


@dataclass(frozen=True)
class Padded:
    """A loss that waits before it computes."""

    loss: Callable[[nn.Module, Any], Tensor]
    seconds: float

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Wait, and compute."""
        time.sleep(self.seconds)
        return self.loss(model, batch)


@dataclass(frozen=True)
class Counted:
    """The work of each worker: wait for the others, train as ever, log its processor time and context switches."""

    line: StartLine
    of: int

    def __call__(self, worker: Worker) -> None:
        """Do it."""
        self.line.wait(worker.index)
        before = resource.getrusage(self.of)
        train_loop(worker)
        after = resource.getrusage(self.of)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        switches = {"voluntary": after.ru_nvcsw - before.ru_nvcsw, "involuntary": after.ru_nivcsw - before.ru_nivcsw}
        worker.info.log(cpu=cpu, **switches)


@dataclass(frozen=True)
class Runner:
    """Who trains: so many workers of a kind by a rule with these options, of which a staleness is one, or none."""

    rule: str
    kind: str
    workers: int
    options: Mapping[str, Any]

    @property
    def staleness(self) -> int | None:
        """That of the rule; None where it has none."""
        return self.options.get("staleness")


@dataclass(frozen=True)
class PaddedPlan:
    """What is measured: each case with each runner, `pad` seconds in each gradient, on a machine with so many cores."""

    cases: Sequence[Case]
    runners: Sequence[Runner]
    pad: float
    cores: int
    repeats: int
    seconds: float

    @property
    def measurements(self) -> int:
        """How many there will be; all repeats of a runner are one."""
        return len(self.cases) * len(self.runners)


@dataclass(frozen=True)
class PaddedResult:
    """What one runner did.

    Attributes:
        updates_per_second: measured.
        predicted: the same by the model.
        ideal: workers ÷ pad.
        cpu: seconds of processor time of the workers an update.
        voluntary, involuntary: context switches an update.
        compensation: what was done so that stale gradients cost no accuracy, in words; it takes time too.
    """

    case: Case
    runner: Runner
    updates_per_second: Spread
    predicted: float
    ideal: float
    cpu: Spread
    voluntary: Spread
    involuntary: Spread
    compensation: Sequence[str] = ()


def measure_padded(plan: PaddedPlan, tell: TellProgress = silent) -> Iterator[PaddedResult | str]:
    """Measure runner by runner; in place of one that was refused, a line that says why."""
    say = BenchTeller(plan.measurements, tell)
    for case in plan.cases:
        work = Work(case.problem, share(case.problem.generate()), case.batch_size, case.optimizer, 0)
        models: dict[tuple[str, str], StepModel] = {}
        for runner in plan.runners:
            name = f"{runner.rule}, {runner.workers} {runner.kind}"
            key = runner.rule, runner.kind
            with say.one(f"{case.name}: {name}"):
                try:
                    if key not in models:
                        models[key] = _model(plan, case, work, runner)
                    yield _measured(plan, case, work, runner, models[key])
                except ArgumentError as error:
                    yield f"{case.name}: {name}: {error}"


def _model(plan: PaddedPlan, case: Case, work: Work, runner: Runner) -> StepModel:
    profiled = ProfilePlan([case], [], 2, plan.repeats, _PROFILED)
    one, two = (profile_case(profiled, case, work, (runner.rule, runner.kind, n), 1.0) for n in (1, 2))
    return fitted_model(one, two if plan.cores > 1 else None, plan.cores, float("inf"))


def padded_work(work: Work, seconds: float) -> Work:
    """The same, where each gradient waits so long."""
    problem = work.problem
    return replace(work, problem=replace(problem, loss=Padded(problem.loss, seconds)), limit=_LIMIT)


def _measured(plan: PaddedPlan, case: Case, work: Work, runner: Runner, model: StepModel) -> PaddedResult:
    per_update = rule_class(runner.rule)(**runner.options).tickets_per_update
    padded = padded_work(work, plan.pad)
    guess = _run(padded, runner, _FIRST_ROUNDS * runner.workers, seed=0)
    updates = max(_LEAST_ROUNDS * runner.workers, round(guess.speed * plan.seconds))
    found = [_run(padded, runner, updates, seed) for seed in range(plan.repeats)]
    most = runner.staleness + 1 if runner.staleness is not None else None
    predicted = replace(model, most=most).updates_per_second(runner.workers, plan.cores, plan.pad) / per_update
    ideal = runner.workers / plan.pad / per_update
    return PaddedResult(
        case,
        runner,
        Spread.over([one.speed for one in found]),
        predicted,
        ideal,
        Spread.over([one.cpu for one in found]),
        Spread.over([one.voluntary for one in found]),
        Spread.over([one.involuntary for one in found]),
        found[0].compensation,
    )


@dataclass(frozen=True)
class _Done:
    """Updates a second; processor seconds and context switches an update; what made up for staleness."""

    speed: float
    cpu: float
    voluntary: float
    involuntary: float
    compensation: Sequence[str]


def _run(work: Work, runner: Runner, updates: int, seed: int) -> _Done:
    per_thread = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    program = Counted(StartLine(runner.workers), per_thread if runner.kind == "threads" else resource.RUSAGE_SELF)
    mine = replace(work, batches=updates * rule_class(runner.rule)(**runner.options).tickets_per_update, seed=seed)
    workers = runner.workers
    done, _ = train_rule(mine, runner.rule, runner.kind, workers, workers, program, options=runner.options)
    cpu, voluntary, involuntary = (
        sum(row[name] for row in done.logged) / done.updates for name in ("cpu", "voluntary", "involuntary")
    )
    return _Done(done.updates / done.seconds, cpu, voluntary, involuntary, done.compensation)
