"""Controls: what the distance between two runs is to be compared with.

serial    the same seed trained twice by one worker: must be the same bits, or the training itself draws or races
one ULP   the same again with one unit in the last place added to one weight: how chaotic the training is anyway
seed      another seed: the distance of unrelated runs, the most that there is (on request)
workers   another number of workers (on request)
machines  2, 3, … machines, processes here (on request): together, beside the run on one; apart, twice each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hogwild.determinism.compare import Comparison, Course, compare, course
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import Outcome, OwnTraining, Subject, Variation
from hogwild.errors import ArgumentError

Tell = Callable[[str], None]
_WEIGHTS = 3  # to try, at most
ALONE: Mapping[str, Any] = {"workers": 1}


@dataclass(frozen=True)
class OnMachines:
    """How far several machines took a training from its run on one; or, where they train `apart` and average, how far
    two runs of as many are apart."""

    nodes: int
    apart: bool
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"nodes": self.nodes, "apart": self.apart, **self.comparison.to_dict()}


@dataclass(frozen=True)
class Controls:
    """The controls that were measured; one that was not is None. `drift` is how far the run with one ULP more is from
    the serial run, along the way."""

    serial: Comparison | None = None
    one_ulp: Comparison | None = None
    seed: Comparison | None = None
    workers: Comparison | None = None
    machines: tuple[OnMachines, ...] = ()
    drift: Course | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        alone = {name: value for name, value in vars(self).items() if name != "machines"}
        found = {name: value.to_dict() if value is not None else None for name, value in alone.items()}
        return {**found, "machines": [one.to_dict() for one in self.machines]}


def measure_controls(
    subject: Subject,
    runs: Outcome,
    at: frozenset[int],
    *,
    other_seed: int | None,
    other_workers: int | None,
    tell: Tell,
) -> tuple[Controls, Outcome]:
    """Measure the controls of a training that can be varied, and return the serial outcome beside them.

    `runs` is one of the repeats that other seeds and worker counts are compared with.
    """
    tell("control: the same seed, serially")
    serial = subject.repeat(Variation(ALONE, at=at))
    again = subject.repeat(Variation(ALONE))
    tell("control: one ULP more in one weight")
    flipped = _flipped(subject, serial, at)
    seeded = counted = None
    if other_seed is not None:
        tell(f"control: seed {other_seed}")
        seeded = compare(runs, subject.repeat(Variation({"seed": other_seed})))
    if other_workers is not None:
        tell(f"control: {other_workers} workers")
        counted = compare(runs, subject.repeat(Variation({"workers": other_workers})))
    controls = Controls(
        serial=compare(serial, again),
        one_ulp=compare(serial, flipped) if flipped is not None else None,
        seed=seeded,
        workers=counted,
        drift=course(serial, flipped) if flipped is not None else None,
    )
    return controls, serial


def measure_machines(own: OwnTraining, alone: Outcome, nodes: int, tell: Tell) -> tuple[OnMachines, ...]:
    """What 2, 3, … machines make of a training, beside `alone`, its run on one; each has one worker where they train
    together."""
    apart = own.config.average_every is not None
    variation = Variation({} if apart else ALONE)
    fresh, found = Fresh(own), []
    for count in range(2, nodes + 1):
        tell(f"control: {count} machines")
        on_several = replace(variation, nodes=count)
        first = fresh.repeat(on_several)
        other = fresh.repeat(on_several) if apart else alone
        found.append(OnMachines(count, apart, compare(other, first)))
    return tuple(found)


def _flipped(subject: Subject, serial: Outcome, at: frozenset[int]) -> Outcome | None:
    """The serial run with one ULP more in a weight; another weight where the bit was rounded away again.

    None where there is no weight to change.
    """
    flipped = None
    for number in range(1, _WEIGHTS + 1):
        try:
            flipped = subject.repeat(Variation(ALONE, ulp=number, at=at))
        except ArgumentError:  # no weight is left to try
            break
        if flipped.digest != serial.digest:
            break
    return flipped


def own_of(subject: Subject) -> OwnTraining | None:
    """The training by `hogwild.train` behind a subject; None for one that is not ours to vary."""
    inner = getattr(subject, "inner", subject)
    return inner if isinstance(inner, OwnTraining) else None
