"""Race damage: how far a run that raced is from what its own log says it did.

    a run in place  → its journal: which update read and made which version, as its worker saw it
    replay          → the same updates in that order, each on a whole version and applied whole
    racing          = distance(run, its own replay): torn reads, lost and doubled writes
    scheduling      = distance(replay of one run, replay of another): the order alone
    log             = distance(replay, replay as if every read had been made just before the write): what the journal
                      does not say, since a read in place lasts from the version it began at to the one it was used at

Chaos makes every distance large in the end, so it is measured over the first updates too, where it has not yet grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.config import RunConfig
from hogwild.determinism.distance import distance, json_number
from hogwild.determinism.subject import Outcome, OwnTraining, Subject, Variation
from hogwild.errors import ArgumentError
from hogwild.rules.base import FRESH, Age
from hogwild.rules.in_place import InPlace
from hogwild.rules.replayed import Replayed
from hogwild.run.result import Run
from hogwild.run.state_dicts import tensors_of

# A replay keeps no more versions than the log's oldest read needs: 64 of a large model at most, more of a small one.
_FEWEST, _MOST, _MEMORY = 64, 4096, 1 << 28  # versions, versions, bytes
_OF_A_TENSOR = 2048  # bytes that a tensor takes beside its values


@dataclass(frozen=True)
class Damage:
    """Relative L2 distances after so many updates, medians over the runs.

    Attributes:
        updates: how long the runs were.
        racing: between a run and its own replay.
        scheduling: between the replays of different runs.
        log: between a replay and one in which every read was made as late as it can have been.
        corrected: share of the journal's rows whose version somebody else also claimed, or which read a version that
            was not yet made in the replayed order, or is too old to be kept; they were put in the nearest possible
            place.
    """

    updates: int
    racing: float
    scheduling: float
    log: float
    corrected: float

    @property
    def in_numbers(self) -> str:
        """The distances."""
        if self.racing <= self.log:
            found = f"none beyond what the log can tell ({self.racing:.2g} of {self.log:.2g})"
        else:
            found = f"{self.racing:.2g} from a clean replay of the run's own log, which is exact to {self.log:.2g}"
        return f"after {self.updates:,} updates, relative L2: {found}; order alone: {self.scheduling:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {name: json_number(value) for name, value in asdict(self).items()}


def races(own: OwnTraining) -> bool:
    """True where the rule reads or writes in place, so that its journal does not determine its bits."""
    return isinstance(own.rule_of(), InPlace)


def damage_in_words(measured: Sequence[Damage]) -> str:
    """Whether racing itself did anything, over the first updates or later, and how that compares with chance."""
    seen = next((damage for damage in measured if damage.racing > damage.log), None)
    if seen is None:
        return (
            "none to be seen: each run is, as exactly as its log tells, what its updates give in that order without a "
            "race"
        )
    size, far = ("much", "more") if seen.racing > seen.scheduling else ("little", "less")
    return (
        f"{size}: reads and writes that collided changed the model, by update {seen.updates:,}, {far} than the chance "
        f"order of the updates"
    )


def measure_damage(subject: Subject, runs: Sequence[Outcome], made_up_for: Age = FRESH) -> Damage:
    """The damage that racing did to two runs or more, whose steps made up for gradients of that age.

    Raises:
        ArgumentError: a run is not ours, or there are fewer than two.
    """
    if len(runs) < 2 or any(run.run is None for run in runs):
        raise ArgumentError("race damage needs two runs of a training by hogwild.train")
    made = [run.run for run in runs if run.run is not None]
    ordered = [in_order(run.journal, _most_kept(run)) for run in made]
    again = partial(_replayed, subject, made_up_for=made_up_for)
    replays = [again(run.config, rows) for run, (rows, _) in zip(made, ordered, strict=True)]
    late = [again(run.config, _latest(rows)) for run, (rows, _) in zip(made, ordered, strict=True)]
    between = [distance(a.state, b.state).relative_l2 for a, b in pairwise(replays)]
    return Damage(
        updates=len(ordered[0][0]),
        racing=median(distance(run.state, own.state).relative_l2 for run, own in zip(runs, replays, strict=True)),
        scheduling=median(between),
        log=median(distance(a.state, b.state).relative_l2 for a, b in zip(replays, late, strict=True)),
        corrected=median(share for _, share in ordered),
    )


def _most_kept(run: Run) -> int:
    """How many versions of its model a replay may keep."""
    nbytes = sum(tensor.nbytes + _OF_A_TENSOR for tensor in tensors_of(run.state).values())
    return min(_MOST, max(_FEWEST, _MEMORY // max(1, nbytes)))


def in_order(journal: NDArray[Any], kept: int = _FEWEST) -> tuple[NDArray[Any], float]:
    """(the rows of a run in place as a possible journal, in the order of the versions seen; the share corrected).
    No read is more than `kept` versions old."""
    rows = journal[np.argsort(journal["version"], kind="stable")].copy()
    positions = np.arange(len(rows))
    wrong = rows["version"] != positions + 1
    read = np.clip(rows["version_read"], np.maximum(0, positions - kept), positions)
    wrong |= read != rows["version_read"]
    rows["version"], rows["version_read"] = positions + 1, read
    return rows, float(wrong.mean()) if len(rows) else 0.0


def _latest(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows, each reading the newest version there was when it was applied."""
    late = rows.copy()
    late["version_read"] = np.arange(len(rows))
    return late


def _replayed(subject: Subject, config: RunConfig, rows: NDArray[Any], made_up_for: Age) -> Outcome:
    """The rows of a run with that configuration made again: as long as it was to be, so that every update has its
    batches and its rates, and ended after as many as it made."""
    settings = {"workers": 1, "epochs": config.epochs, "updates": config.updates, "limit_updates": len(rows)}
    return subject.repeat(Variation(settings, rule=Replayed(rows, made_up_for), stops=False))
