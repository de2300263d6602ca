"""check(): repeat a training, and say how far the runs diverge, where first, why, and how bad that is.

    subject → repeats, traced → every pair compared → controls → first difference → damage → Verdict

A run is never compared with itself, and a repeat that could not be made, or lost a worker, ends the check.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from statistics import median
from typing import Any

from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.determinism.compare import compare_all, courses, marks, worst
from hogwild.determinism.controls import Controls, Tell, measure_controls, measure_machines, own_of
from hogwild.determinism.damage import Damage, measure_damage, races
from hogwild.determinism.explain import explain as explained
from hogwild.determinism.first import find_first
from hogwild.determinism.foreign import ForeignFunction
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import AS_IT_IS, Outcome, OwnTraining, Subject, Variation
from hogwild.determinism.verdict import Remedy, Repeat, Tolerance, Verdict
from hogwild.errors import ArgumentError, HogwildError, a_type, flag_of, short_traceback
from hogwild.experiment import Problem
from hogwild.model.computed import copy_of_model
from hogwild.nodes.invitation import refuse_torchrun
from hogwild.rules.registry import LEAST_OVERHEAD, SAME_BITS, make_rule, rule_class, rule_name
from hogwild.run.averages import refuse_to_race_together
from hogwild.run.training import refuse_swapped

WINDOW = 100  # updates over which race damage is measured before chaos has grown
_SEALED_EACH = 1 << 20  # bytes of a model below which the bits of every version of a checked run are noted
_REMEDY_RUNS = 3
_OTHERS = ("collate", "lr_schedule", "stop", "callbacks")  # arguments of hogwild.train that are no settings
_NOT_CHECKED = (
    *("lr", "data", "out", "resume", "keep_best", "patience", "checkpoint_every", "progress"),
    *("on_worker_failure", "max_restarts"),
)


@dataclass(frozen=True)
class CheckSettings:
    """How to check.

    Attributes:
        runs: repeats, at least 2.
        tolerance: what is allowed; None is the same bits.
        explain: vary one source of differences at a time.
        other_seed, other_workers: measure these controls too.
        window: updates over which race damage is measured first.
        controls: measure controls, race damage, audit and remedy; without, only the runs are compared.
        nodes: train on 2 and more machines too, up to so many.
        typed: it was asked for on the command line.
    """

    runs: int = 5
    tolerance: Tolerance | None = None
    explain: bool = False
    other_seed: int | None = None
    other_workers: int | None = None
    window: int = WINDOW
    controls: bool = True
    nodes: int = 1
    typed: bool = False

    def __post_init__(self) -> None:
        for name in ("runs", "other_seed", "other_workers", "window", "nodes"):
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise ArgumentError(f"{name} {value!r} is {a_type(value)}; it must be a whole number")
        if self.nodes < 1:
            raise ArgumentError(f"nodes {self.nodes} is below 1; 2 compares one machine with two")
        if self.runs < 2:
            raise ArgumentError(f"runs {self.runs} is below 2, and a run is not compared with itself; 5 is usual")
        if self.other_workers is not None and self.other_workers < 1:
            raise ArgumentError(f"other_workers {self.other_workers} is below 1; 1 or more works")
        if self.window < 1:
            raise ArgumentError(f"window {self.window} is below 1; {WINDOW} updates are usual")


@short_traceback
def check(
    make_run: Callable[[], Any] | nn.Module,
    *data_and_loss: Any,
    runs: int = 5,
    tolerance: float | None = None,
    measure: str = "relative_l2",
    fresh_process: bool = False,
    explain: bool = False,
    other_seed: int | None = None,
    other_workers: int | None = None,
    window: int = WINDOW,
    controls: bool = True,
    nodes: int = 1,
    predict: Callable[[nn.Module], tuple[Tensor, Tensor | None]] | None = None,
    tell: Tell | None = None,
    **arguments: Any,
) -> Verdict:
    """Repeat a training and measure how far the runs diverge.

        verdict = hogwild.check(model, data, loss, optimizer=…, update="hogwild", epochs=5)    # as hogwild.train
        verdict = hogwild.check(make_run)                   # any function that trains, ours or not
        print(verdict); assert verdict.identical

    Args:
        make_run: a function without arguments that trains, and returns a `Run`, a module or a state dict, made anew at
            each call; or the model to train, followed by the other arguments of `hogwild.train`. The model is left as
            it is.
        data_and_loss: `data` and `loss` as `hogwild.train` takes them, where a model is given.
        runs: repeats.
        tolerance: runs pass when every pair is within it on `measure`; None is the same bits.
        measure: `relative_l2`, `max_abs` or `max_ulp`.
        fresh_process: make each repeat in a fresh interpreter.
        explain: vary one source of differences at a time; see `Verdict.sources`.
        other_seed: train with this seed too, for comparison.
        other_workers: train with so many workers too, for comparison.
        window: updates over which race damage is measured first.
        controls: measure controls, race damage, audit and remedy too, where the training can be varied.
        nodes: train on 2 and more machines too, up to so many, which are processes of this one, each with one worker.
            With `average_every` machines train apart; then as many are compared with as many.
        predict: model → (logits (N, C), targets (N,) or None) on an evaluation set, to say whose predictions differ,
            where a model is given. It comes in eval mode, and gradients are off.
        tell: called with a line of text as the check goes on.
        arguments: of `hogwild.train`, where a model is given.

    Controls, first difference by bisection, race damage and audit need a training that can be varied, and so a model.

    Raises:
        ArgumentError: an argument that cannot work, or `make_run` returned what it returned before.
        WorkerError: a repeat could not be made, or lost a worker.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    asked = Tolerance(0.0 if tolerance is None else tolerance, measure)
    allowed = None if tolerance is None else asked
    settings = CheckSettings(runs, allowed, explain, other_seed, other_workers, window, controls, nodes)
    subject = _subject_of(make_run, *data_and_loss, predict=predict, **arguments)
    return check_subject(Fresh(subject) if fresh_process else subject, settings, tell)


def _subject_of(make_run: Any, *data_and_loss: Any, predict: Any, **arguments: Any) -> Subject:
    """What is checked, from the arguments of `check`."""
    if isinstance(make_run, nn.Module):
        return own_training(make_run, *data_and_loss, predict=predict, **arguments)
    if data_and_loss or arguments or not callable(make_run):
        beside = f" beside {', '.join(arguments) or 'data'}" if callable(make_run) else ": give the function, uncalled"
        raise ArgumentError(
            "check takes a function that trains, alone, or a model with the arguments of hogwild.train; "
            f"it was given {a_type(make_run)}{beside}"
        )
    if predict is not None:
        raise ArgumentError(
            "predict given with a function that trains by itself, whose models are not asked; give the model, with the "
            "arguments of hogwild.train"
        )
    return ForeignFunction(make_run)


def own_training(
    model: nn.Module,
    data: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    *,
    predict: Callable[[nn.Module], tuple[Tensor, Tensor | None]] | None = None,
    **arguments: Any,
) -> OwnTraining:
    """The training that `hogwild.train` would make of these arguments, to be repeated on copies of the model."""
    if data is None or loss is None or "optimizer" not in arguments:
        raise ArgumentError(
            "check was given a model without data, loss and optimizer; give all, as to hogwild.train, or the function "
            "that makes and trains it, uncalled"
        )
    refuse_swapped(model, data, loss)
    update = arguments.pop("update", LEAST_OVERHEAD)
    optimizer, evaluate = arguments.pop("optimizer"), arguments.pop("evaluate", None)
    others: dict[str, Any] = {key: arguments.pop(key) for key in _OTHERS if key in arguments}
    known = {field.name for field in fields(RunConfig)} - {*_NOT_CHECKED, "changes"}
    for name in arguments:
        if name not in known:
            raise ArgumentError(f"check takes no argument {name!r}; {_instead(name, known)}")
    config = RunConfig(update=rule_name(update), **arguments)
    rule = make_rule(update, config)
    initial = copy_of_model(model)

    def build(seed: int) -> Problem:  # noqa: ARG001
        return Problem(copy_of_model(initial), data, loss, evaluate, predict)

    return OwnTraining(config, build, optimizer, rule, others)


def _instead(name: str, known: Collection[str]) -> str:
    if name in _NOT_CHECKED:
        return "it repeats a training and saves nothing"
    close = get_close_matches(name, known, 1)
    return f"{close[0]!r} is one" if close else "it takes those of hogwild.train"


def check_subject(
    subject: Subject, settings: CheckSettings, tell: Tell | None = None, *, runs: list[Outcome] | None = None
) -> Verdict:
    """Check any subject; arguments and errors are those of `check`. The repeats are put into `runs` as they are made,
    where somebody wants to know of them when the check is interrupted."""
    refuse_torchrun("a check", "start it without; nodes=2 (--nodes 2) makes machines by itself")
    began = time.monotonic()
    say = tell or _silent
    own = own_of(subject)
    _refuse_machines(own, settings.nodes)
    _refuse_controls(own, settings)
    variation = _traced(own, settings.runs) if own is not None else AS_IT_IS
    runs = [] if runs is None else runs
    for number in range(settings.runs):
        say(f"run {number + 1} of {settings.runs}")
        runs.append(subject.repeat(variation))
    comparisons = compare_all(runs)
    differ = len({run.digest for run in runs}) > 1
    say("looking for the first difference")
    first = find_first(subject, own, runs) if differ else None
    machines = measure_machines(own, runs[0], settings.nodes, say) if own is not None else ()
    if not settings.controls:
        own = None
    controls, serial = Controls(), None
    if own is not None:
        others = {"other_seed": settings.other_seed, "other_workers": settings.other_workers}
        controls, serial = measure_controls(subject, runs[0], variation.at, **others, tell=say)
    sources = tuple(explained(subject, own, runs, serial, say)) if settings.explain else ()
    return Verdict(
        title=subject.title,
        config=own.config if own is not None else None,
        runs=tuple(map(_repeat, runs)),
        comparisons=tuple(comparisons),
        worst=worst(comparisons),
        first_difference=first,
        controls=replace(controls, machines=machines),
        damage=_damage(subject, own, runs, settings.window, say) if differ else (),
        audit=_audited(subject, own, say),
        sources=sources,
        remedy=_remedy(subject, own, say) if differ else None,
        courses=tuple(courses(runs)),
        tolerance=settings.tolerance,
        ages=_ages(runs),
        seconds=time.monotonic() - began,
        typed=settings.typed,
        one_process=isinstance(subject, ForeignFunction),
    )


def so_far(runs: Sequence[Outcome]) -> str:
    """In words, what repeats say before a check is done; empty where they are too few."""
    if len(runs) < 2:
        return ""
    digests = len({run.digest for run in runs})
    return f"the {len(runs)} runs that were made have {'the same bits' if digests == 1 else f'{digests} digests'}"


def _refuse_machines(own: OwnTraining | None, nodes: int) -> None:
    """Refuse a check on several machines that cannot be made."""
    if nodes == 1:
        return
    if own is None:
        raise ArgumentError(f"nodes {nodes} given, and only hogwild.train can train on several machines")
    if own.config.average_every is None:
        refuse_to_race_together(own.rule_of())
        own.rule_of().check(nodes)


def _refuse_controls(own: OwnTraining | None, settings: CheckSettings) -> None:
    """Refuse to be asked for a control that cannot be made, or where none is."""
    if own is not None and settings.controls:
        if settings.other_workers is not None:
            own.rule_of().check(settings.other_workers)
        return
    why = "only hogwild.train can be varied" if own is None else "controls=False measures no control"
    for name in ("other_seed", "other_workers"):
        if (value := getattr(settings, name)) is not None:
            raise ArgumentError(f"{name} {value} given, and {why}")


def _silent(text: str) -> None:
    """What a check says while nobody listens."""


def _traced(own: OwnTraining, runs: int) -> Variation:
    """The training as it is, with versions traced, and, for small models, the bits of all of them noted."""
    problem, _ = own.source()
    tensors = [value for value in problem.model.state_dict().values() if isinstance(value, Tensor)]
    nbytes = sum(value.numel() * value.element_size() for value in tensors)
    settings = {"digest_every": 1} if own.rule_of().versioned and nbytes <= _SEALED_EACH else {}
    return Variation(settings, at=marks(own.updates, nbytes, runs))


def _repeat(outcome: Outcome) -> Repeat:
    run = outcome.run
    if run is None:
        return Repeat(outcome.digest)
    ages = run.staleness
    return Repeat(
        outcome.digest,
        run.updates,
        outcome.accuracy,
        run.samples_per_second,
        (ages.mean, ages.p99, ages.max),
        run.config.update,
        run.config.workers,
        len(set(run.journal["worker"].tolist())),
    )


def _ages(runs: Sequence[Outcome]) -> tuple[int, ...]:
    """How many updates, over all runs, were computed on a version 0, 1, 2, … updates old."""
    counts: dict[int, int] = {}
    for outcome in runs:
        if outcome.run is not None:
            journal = outcome.run.journal
            for age in (journal["version"] - 1 - journal["version_read"]).tolist():
                counts[age] = counts.get(age, 0) + 1
    return tuple(counts.get(age, 0) for age in range(max(counts, default=-1) + 1))


def _damage(
    subject: Subject, own: OwnTraining | None, runs: Sequence[Outcome], window: int, tell: Tell
) -> tuple[Damage, ...]:
    """What racing did to short runs, and to two of the whole ones."""
    updates = runs[0].run.updates if runs[0].run is not None else 0
    if own is None or not races(own):
        return ()
    tell("race damage: replaying runs cleanly")
    made_up_for = own.rule_of().made_up_for(own.config.workers)
    whole = measure_damage(subject, runs[:2], made_up_for)
    if window >= updates:
        return (whole,)
    short = Variation({"epochs": None, "updates": window}, stops=False)
    return measure_damage(subject, [subject.repeat(short) for _ in range(2)], made_up_for), whole


def _audited(subject: Subject, own: OwnTraining | None, tell: Tell) -> Any:
    if own is None:
        return None
    tell("audit: one more run, with an account of its gradients")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "audit asked for")  # an optimizer may have none
        run = subject.repeat(Variation({"audit": True})).run
    return run.audit if run is not None else None


def _remedy(subject: Subject, own: OwnTraining | None, tell: Tell) -> Remedy | None:
    """The rule with the same bits, measured: its speed beside that of the checked rule, run in turn with it."""
    if own is None or own.rule_of().same_bits:
        return None
    options = rule_class(SAME_BITS).options_for(own.config.workers)
    settings = {"update": SAME_BITS, **options}
    there: list[Outcome] = []
    here: list[Outcome] = []
    try:
        for number in range(_REMEDY_RUNS):
            tell(f"remedy: {SAME_BITS}, run {number + 1} of {_REMEDY_RUNS}")
            there.append(subject.repeat(Variation(settings)))
            here.append(subject.repeat(Variation()))
    except HogwildError:
        return None
    speeds = [
        a.run.samples_per_second / b.run.samples_per_second for a, b in zip(there, here, strict=True) if a.run and b.run
    ]
    named = {name: value for name, value in options.items() if value != getattr(RunConfig, name)}
    flags = " ".join([f"--update {SAME_BITS}", *(f"{flag_of(name)} {named[name]}" for name in named)])
    arguments = ", ".join([f'update="{SAME_BITS}"', *(f"{name}={named[name]!r}" for name in named)])
    digests = {outcome.digest for outcome in there}
    return Remedy(flags, median(speeds), there[0].accuracy, len(digests), len(there), arguments)
