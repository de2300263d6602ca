"""All contenders by name, each with a line that says what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hogwild.bench import alternatives
from hogwild.bench.ours import ours
from hogwild.bench.work import StartContender
from hogwild.config import KINDS, RunConfig
from hogwild.rules.registry import LEAST_OVERHEAD, NAMES, RULES, SAME_BITS, rule_class

SERIAL = "serial"
CUT = "cut"
HANDS = (SERIAL, CUT)  # the two loops written by hand, which are always measured
APART = "apart"
SEVERAL_PROCESSES = ("recipe", "ddp")
ALTERNATIVES = (SERIAL, "intra-op", *SEVERAL_PROCESSES)
FAMILIES = (SERIAL, CUT, *ALTERNATIVES[1:], APART, *NAMES)
QUICK_RULES = (LEAST_OVERHEAD, SAME_BITS)


@dataclass(frozen=True)
class Contender:
    """One way to train.

    Attributes:
        name: what tables call it.
        about: what it is, in a line.
        family: what `--contenders` calls it: serial, cut, intra-op, recipe, ddp, apart, or the name of a rule.
        workers: how many train at once.
        start: does the work.
        kind: threads or processes, for rules and for loops apart.
    """

    name: str
    about: str
    family: str
    workers: int
    start: StartContender = field(repr=False)
    kind: str = ""


def contenders(
    workers: int,
    families: Sequence[str] = FAMILIES,
    kinds: Sequence[str] = KINDS,
    compensation: str = RunConfig.compensation,
) -> list[Contender]:
    """The contenders of these families; rules at `counts(workers)`, of these kinds."""
    everyone = (*_alternatives(workers), *_apart(workers, kinds), *_rules(workers, kinds, compensation))
    return [contender for contender in everyone if contender.family in families]


def counts(workers: int) -> list[int]:
    """1, 2, 4, … and `workers`: the numbers of workers at which rules are measured."""
    return sorted({workers, *(2**power for power in range(workers.bit_length()) if 2**power <= workers)})


def options_of(rule: str, workers: int, compensation: str) -> dict[str, Any]:
    """Options of a rule that keep so many workers busy, with that compensation where its gradients have a fixed age."""
    options = dict(rule_class(rule).options_for(workers))
    return {**options, "compensation": compensation} if "staleness" in options else options


def _alternatives(workers: int) -> Iterator[Contender]:
    yield Contender(
        SERIAL,
        "the hand-written loop: index a new permutation every epoch, zero_grad, backward, step; one torch thread",
        SERIAL,
        1,
        alternatives.serial,
    )
    yield Contender(
        "serial, batches cut",
        "the hand-written loop over one epoch's batches that were cut before the clock runs: no order, no indexing; "
        "training alone",
        CUT,
        1,
        alternatives.cut,
    )
    yield Contender(
        f"intra-op, {workers} threads",
        f"the hand-written loop in one process, with torch.set_num_threads({workers})",
        "intra-op",
        workers,
        partial(alternatives.intra_op, workers=workers),
    )
    yield Contender(
        f"recipe, {workers} processes",
        f"the Hogwild recipe of PyTorch's documentation: model.share_memory(), {workers} processes of one torch thread,"
        " each with a shuffling DataLoader over the whole data and an optimizer; samples counted in total",
        "recipe",
        workers,
        partial(alternatives.recipe, workers=workers),
    )
    yield Contender(
        f"ddp, {workers} processes",
        f"DistributedDataParallel on gloo: {workers} processes of one torch thread, DataLoader with DistributedSampler;"
        f" an update averages {workers} batches",
        "ddp",
        workers,
        partial(alternatives.ddp, workers=workers),
    )


def _apart(workers: int, kinds: Sequence[str]) -> Iterator[Contender]:
    for kind in kinds:
        for number in counts(workers)[1:]:
            yield Contender(
                f"{APART}, {who(kind, number)}",
                "so many loops over batches cut before, which share nothing, each with a model of its own: what this "
                "machine has to give; loss and target are of one of them",
                APART,
                number,
                partial(alternatives.apart, workers=number, kind=kind),
                kind,
            )


def _rules(workers: int, kinds: Sequence[str], compensation: str) -> Iterator[Contender]:
    for rule in NAMES:
        options = options_of(rule, workers, compensation)
        for kind in kinds:
            for number in counts(workers):
                yield Contender(
                    f"{rule}, {who(kind, number)}",
                    f"this package's rule {rule}{_setting(rule, options)}",
                    rule,
                    number,
                    partial(ours, rule=rule, kind=kind, workers=number, options=options),
                    kind,
                )


def _setting(rule: str, options: Mapping[str, Any]) -> str:
    """Those options in words."""
    said = RULES[rule].options
    words = [said[name].format(value) for name, value in options.items() if said[name]]
    if options.get("compensation") == "none":
        words.append("no compensation")
    return "".join(f", {word}" for word in words)


def who(kind: str, number: int) -> str:
    """How many of which, as in 2 processes."""
    one = {"threads": "thread", "processes": "process"}[kind]
    return f"{number} {one if number == 1 else kind}"
