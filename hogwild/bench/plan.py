"""From settings to a plan: what is to be measured, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hogwild.bench.contenders import APART, FAMILIES, HANDS, QUICK_RULES, contenders, counts, options_of
from hogwild.bench.measure import Case, Plan
from hogwild.bench.padded import PaddedPlan, Runner
from hogwild.bench.problems import BENCH_OPTIMIZERS, COMPARED, PROBLEMS
from hogwild.bench.profile import ProfilePlan
from hogwild.bench.several import Crowd, SeveralPlan, busy_at
from hogwild.config import KINDS, RunConfig
from hogwild.errors import ArgumentError
from hogwild.rules.registry import NAMES

BATCH_SIZES = (1, 16, 64)
_QUICK_CASES = (("mlp", 64), ("small-mlp", 16), ("conv", 16))
_MOST = 8192  # samples that every problem has
_MOST_NODES, _MOST_DELAY = 16, 1000  # of a bench of several machines on this one


@dataclass(frozen=True)
class BenchSettings:
    """What to measure; an empty choice is all of them, or of a quick benchmark those that it has.

    Attributes:
        problems, batch_sizes, optimizers, contenders, kinds: names and numbers to choose.
        workers: of contenders that have several; rules are measured at one worker too.
        repeats: measurements of each; default 5.
        seconds: about how long the serial loop takes in one measurement.
        quick: a small choice, and no loss over time; about a minute.
        compensation: that of a rule whose gradients have a fixed age.
    """

    problems: Sequence[str] = ()
    batch_sizes: Sequence[int] = ()
    optimizers: Sequence[str] = ()
    contenders: Sequence[str] = ()
    kinds: Sequence[str] = ()
    workers: int = 2
    repeats: int = 5
    seconds: float = 0.5
    quick: bool = False
    compensation: str = RunConfig.compensation


def plan_of(settings: BenchSettings) -> Plan:
    """The plan of these settings.

    Raises:
        ArgumentError: a name is not known, or a number cannot work.
    """
    _check(settings, FAMILIES)
    if APART in settings.contenders and settings.workers < 2:
        raise ArgumentError(f"{APART} is of two loops or more; --workers 2 works")
    families = settings.contenders or (QUICK_RULES if settings.quick else FAMILIES)
    kinds = settings.kinds or (("processes",) if settings.quick else KINDS)
    return Plan(
        cases=_cases(settings),
        contenders=contenders(settings.workers, (*HANDS, *families), kinds, settings.compensation),
        workers=settings.workers,
        repeats=settings.repeats,
        seconds=settings.seconds,
        curves=0 if settings.quick else min(3, settings.repeats),
    )


def profile_plan_of(settings: BenchSettings) -> ProfilePlan:
    """The plan of a profile of these settings; by default every problem, batch 16, SGD, the rule with the
    least overhead and the one with the same bits, with processes, at one worker and at `workers`.

    Raises:
        ArgumentError: a name is not known, or a number cannot work.
    """
    _check(settings, NAMES)
    runners = [
        (rule, kind, number)
        for rule in settings.contenders or QUICK_RULES
        for kind in settings.kinds or ("processes",)
        for number in sorted({1, settings.workers})
    ]
    cases = _few_cases(settings, PROBLEMS, 16)
    return ProfilePlan(cases, runners, settings.workers, settings.repeats, settings.seconds)


def padded_plan_of(settings: BenchSettings, pad_ms: float, staleness: Sequence[int], cores: int) -> PaddedPlan:
    """The plan of a bench of scaling; by default the MLP at batch 4 with SGD, the rules and the kind as for a profile,
    at 1, 2, 4, … workers. `staleness`: what to give a rule that has one; by default as many as keep the workers busy.

    Raises:
        ArgumentError: a name is not known, or a number cannot work.
    """
    _check(settings, NAMES)
    _check_pad(pad_ms)
    runners = [
        Runner(rule, kind, number, options)
        for rule in settings.contenders or QUICK_RULES
        for kind in settings.kinds or ("processes",)
        for number in counts(settings.workers)
        for options in _options(rule, number, staleness, settings.compensation)
    ]
    cases = _few_cases(settings, ("mlp",), 4)
    return PaddedPlan(cases, runners, pad_ms / 1e3, cores, settings.repeats, settings.seconds)


def several_plan_of(
    settings: BenchSettings, pad_ms: float, nodes: Sequence[int], delays_ms: Sequence[float], staleness: Sequence[int]
) -> SeveralPlan:
    """The plan of a bench of several machines, at each delay of their links; by default small-mlp at batch 16 with SGD.
    `staleness`: what to give them; by default so much that all are busy, with a round of slack.

    Raises:
        ArgumentError: a name is not known, or a number cannot work.
    """
    _check(settings, NAMES)
    _check_pad(pad_ms)
    for number in nodes:
        if not 2 <= number <= _MOST_NODES:
            raise ArgumentError(f"--nodes {number} is not between 2 and {_MOST_NODES}; 2 4 works")
        if staleness and max(staleness) < number - 1:
            raise ArgumentError(
                f"--staleness {max(staleness)} keeps no {number} machines busy; {number - 1} is the least"
            )
    for delay in delays_ms:
        if not 0 <= delay <= _MOST_DELAY:
            raise ArgumentError(f"--delay-ms {delay:g} is not between 0 and {_MOST_DELAY}; 0 5 20 works")
    crowds = [
        Crowd(number, delay / 1e3, [one for one in staleness if one >= number - 1] or [busy_at(number, pad_ms, delay)])
        for number in nodes
        for delay in delays_ms or (0.0,)
    ]
    return SeveralPlan(
        _few_cases(settings, ("small-mlp",), 16),
        crowds,
        pad_ms / 1e3,
        settings.repeats,
        settings.seconds,
        settings.compensation,
    )


def _few_cases(settings: BenchSettings, problems: Iterable[str], batch_size: int) -> list[Case]:
    """The cases that are chosen; by default those problems at one batch size, with SGD."""
    return [
        Case(PROBLEMS[name], optimizer, size)
        for name in settings.problems or problems
        for size in settings.batch_sizes or (batch_size,)
        for optimizer in settings.optimizers or ("sgd",)
    ]


def _check_pad(pad_ms: float) -> None:
    if not 0 < pad_ms < float("inf"):
        raise ArgumentError(f"--pad-ms {pad_ms:g} is not above 0; 5 works")


def _options(rule: str, workers: int, staleness: Sequence[int], compensation: str) -> list[Mapping[str, Any]]:
    """The options of a rule at so many workers: those of its own, or each staleness that is enough for them."""
    own = options_of(rule, workers, compensation)
    if "staleness" not in own or not staleness:
        return [own]
    enough = [number for number in staleness if number >= workers - 1] or [max(staleness)]
    return [{**own, "staleness": number} for number in enough]


def _check(settings: BenchSettings, contenders: Iterable[str]) -> None:
    _known("problem", settings.problems, PROBLEMS)
    _known("optimizer", settings.optimizers, BENCH_OPTIMIZERS)
    _known("contender", settings.contenders, contenders)
    _known("kind", settings.kinds, KINDS)
    for size in settings.batch_sizes:
        if not 1 <= size <= _MOST:
            raise ArgumentError(f"batch size {size} is not between 1 and {_MOST}, the samples of a problem")
    _at_least_one("workers", settings.workers)
    _at_least_one("repeats", settings.repeats)
    if not 0 < settings.seconds < float("inf"):
        raise ArgumentError(f"seconds {settings.seconds} is not above 0; 0.5 works")


def _cases(settings: BenchSettings) -> list[Case]:
    optimizers = settings.optimizers or (("sgd",) if settings.quick else BENCH_OPTIMIZERS)
    if settings.quick and not settings.problems and not settings.batch_sizes:
        pairs: Iterable[tuple[str, int]] = _QUICK_CASES
    else:
        sizes = settings.batch_sizes or ((64,) if settings.quick else BATCH_SIZES)
        pairs = [(problem, size) for problem in settings.problems or COMPARED for size in sizes]
    return [Case(PROBLEMS[problem], optimizer, size) for problem, size in pairs for optimizer in optimizers]


def _known(what: str, given: Sequence[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise ArgumentError(f"{what} {name!r} is not known; {', '.join(known)} are")


def _at_least_one(what: str, number: int) -> None:
    if number < 1:
        raise ArgumentError(f"{what} {number} is below 1; it must be 1 or more")
