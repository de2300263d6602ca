"""The method: every contender runs once in each repeat, in turn, and is compared within that repeat.

    case → data → how many batches take the serial loop `seconds` → repeat 0: A B C … → repeat 1: A B C … → …

What slows the machine for a while slows a whole repeat, so a ratio within one is worth more than a ratio of medians.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hogwild.bench.contenders import SERIAL, Contender
from hogwild.bench.problems import BenchProblem
from hogwild.bench.work import Measurement, NotFinishedError, Work, share
from hogwild.errors import ArgumentError

_FIRST_GUESS, _GROWTH = 48, 16  # batches, while looking for how many there should be
_LOOKS = 20  # points of a curve of the loss
_LONGER = 2  # times the batches are trained where the loss over time is wanted


@dataclass(frozen=True)
class Case:
    """A problem, an optimizer and a batch size."""

    problem: BenchProblem
    optimizer: str
    batch_size: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.problem.name} · batch {self.batch_size} · {self.optimizer}"


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        cases, contenders: each of the one with each of the other.
        workers: the most that a contender has.
        repeats: measurements of each.
        seconds: about how long the serial loop takes in one measurement.
        curves: repeats in which the loss is followed, after the others.
    """

    cases: Sequence[Case]
    contenders: Sequence[Contender]
    workers: int = 2
    repeats: int = 5
    seconds: float = 0.5
    curves: int = 3

    @property
    def measurements(self) -> int:
        """How many there will be."""
        return len(self.cases) * len(self.contenders) * (self.repeats + self.curves)


@dataclass(frozen=True)
class FailedMeasurement:
    """A contender that did not do its work in one measurement; `refused` where it says that it never will, `late` where
    an alternative was ended because it took too long."""

    message: str
    refused: bool = False
    late: bool = False


Attempt = Measurement | FailedMeasurement


@dataclass(frozen=True)
class Spread:
    """Median and range of some measurements, and how many there were."""

    median: float
    least: float
    most: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        return cls.over(values) if values else None

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class CaseResult:
    """What came of a case: attempts by the contender's name, one per repeat; `curves` likewise, with the loss over
    time."""

    case: Case
    batches: int
    attempts: Mapping[str, Sequence[Attempt]]
    curves: Mapping[str, Sequence[Attempt]]

    def spread(self, name: str, value: Callable[[Measurement], float]) -> Spread | None:
        """Of one contender's outcomes."""
        return Spread.of([value(outcome) for outcome in self.outcomes(name)])

    def outcomes(self, name: str) -> list[Measurement]:
        """Of the repeats in which a contender did its work."""
        return [attempt for attempt in self.attempts[name] if isinstance(attempt, Measurement)]

    def ratio(self, of: str, over: str) -> Spread | None:
        """Samples per second of the one over those of the other, each pair from one repeat."""
        pairs = zip(self.attempts.get(of, ()), self.attempts.get(over, ()), strict=False)
        return Spread.of(
            [
                one.samples_per_second / other.samples_per_second
                for one, other in pairs
                if isinstance(one, Measurement) and isinstance(other, Measurement)
            ]
        )

    def failures(self, name: str) -> list[FailedMeasurement]:
        """In the repeats and in the curves."""
        attempts = (*self.attempts[name], *self.curves.get(name, ()))
        return [attempt for attempt in attempts if isinstance(attempt, FailedMeasurement)]

    @property
    def target(self) -> float | None:
        """The loss that the serial loop has after `batches` batches, in the first curve; None where there is none."""
        first = next((attempt for attempt in self.curves.get(SERIAL, ()) if isinstance(attempt, Measurement)), None)
        return first.curve[len(first.curve) // 2][1] if first and first.curve else None

    def seconds_to_target(self, name: str) -> tuple[Spread | None, int]:
        """Of those curves that reached the target, and how many did not."""
        curves = [attempt.curve for attempt in self.curves.get(name, ()) if isinstance(attempt, Measurement)]
        if self.target is None:
            return None, 0
        reached = [seconds for curve in curves if (seconds := crossing(curve, self.target)) is not None]
        return Spread.of(reached), len(curves) - len(reached)


def crossing(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Seconds at which a curve of (seconds, loss) first is at the target or below, on straight lines; None: never."""
    before: tuple[float, float] | None = None
    for seconds, loss in curve:
        if loss <= target:
            if before is None:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - target) / (before[1] - loss)
        before = (seconds, loss)
    return None


@dataclass(frozen=True)
class BenchProgress:
    """How far a benchmark is: `done` of `total` measurements, and what comes next; `seconds` since it began."""

    done: int
    total: int
    what: str
    seconds: float


TellProgress = Callable[[BenchProgress], None]


def silent(step: BenchProgress) -> None:
    """Tell nobody."""


class BenchTeller:
    """Counts measurements, and tells of each before it is made: while one runs, nothing else does."""

    def __init__(self, total: int, tell: TellProgress) -> None:
        self._total = total
        self._tell = tell
        self._began = time.monotonic()
        self._done = 0

    def __call__(self, what: str) -> None:
        """This is next."""
        self._tell(BenchProgress(self._done, self._total, what, time.monotonic() - self._began))

    @contextmanager
    def one(self, what: str) -> Iterator[None]:
        """Inside, a measurement is made."""
        self(what)
        yield
        self._done += 1


def measure_cases(plan: Plan, tell: TellProgress = silent) -> Iterator[CaseResult]:
    """Measure case by case.

    Raises:
        ArgumentError: there is no serial loop in the plan, on which all else is judged.
        ContenderError: the serial loop could not be run to find the number of batches.
    """
    say = BenchTeller(plan.measurements, tell)
    for case in plan.cases:
        say(f"{case.name}: preparing")
        limit = max(60.0, 120 * plan.seconds)
        work = Work(case.problem, share(case.problem.generate()), case.batch_size, case.optimizer, 0, limit=limit)
        work = replace(work, batches=_batches(plan, work))
        longer = replace(work, batches=_LONGER * work.batches, looks=_LOOKS, limit=_LONGER * limit)
        attempts, curves = _none_yet(plan), _none_yet(plan)
        try:
            _repeat(plan, work, plan.repeats, say, case.name, attempts)
            _repeat(plan, longer, plan.curves, say, f"{case.name}: loss over time", curves)
        except (KeyboardInterrupt, SystemExit):
            if whole := min(map(len, attempts.values())):  # repeats in which every contender had its turn
                yield CaseResult(case, work.batches, {name: mine[:whole] for name, mine in attempts.items()}, curves)
            raise
        yield CaseResult(case, work.batches, attempts, curves)


def _none_yet(plan: Plan) -> dict[str, list[Attempt]]:
    return {contender.name: [] for contender in plan.contenders}


def _batches(plan: Plan, work: Work) -> int:
    """About as many as the serial loop trains in the plan's seconds; a multiple of what every contender divides by."""
    serial = next((c for c in plan.contenders if c.family == SERIAL), None)
    if serial is None:
        raise ArgumentError("a benchmark without the serial loop has nothing to compare with; add 'serial'")
    divisor = 2 * plan.workers
    batches = _FIRST_GUESS
    while True:
        outcome = serial.start(replace(work, batches=batches))
        if outcome.seconds >= plan.seconds / 10:
            wanted = outcome.batches / outcome.seconds * plan.seconds
            return max(1, math.ceil(wanted / divisor)) * divisor
        batches *= _GROWTH


def _repeat(
    plan: Plan, work: Work, repeats: int, say: BenchTeller, title: str, attempts: dict[str, list[Attempt]]
) -> None:
    """Every contender once in each repeat. One that was refused is not asked again; one that failed is."""
    for repeat in range(repeats):
        for contender in plan.contenders:
            mine = attempts[contender.name]
            refusal = next((a for a in mine if isinstance(a, FailedMeasurement) and a.refused), None)
            with say.one(f"{title}: repeat {repeat + 1} of {repeats}, {contender.name}"):
                mine.append(refusal or attempt(contender, replace(work, seed=repeat)))


def attempt(contender: Contender, work: Work) -> Attempt:
    """Let a contender do the work; whatever it raises becomes a `FailedMeasurement`."""
    try:
        outcome = contender.start(work)
    except ArgumentError as error:
        return FailedMeasurement(str(error), refused=True)
    except NotFinishedError as error:
        return FailedMeasurement(str(error), late=True)
    except Exception as error:
        return FailedMeasurement(f"{type(error).__name__}: {error}")
    if outcome.batches != work.batches:
        return FailedMeasurement(f"trained on {outcome.batches} batches instead of {work.batches}")
    if not math.isfinite(outcome.loss):
        return FailedMeasurement(f"its loss is {outcome.loss}")
    return outcome
