"""Two recorded runs side by side: what differs in their settings, in where they were made, in results and in bits.

    settings, training, environment   as recorded
    final states                      distance
    seals                             the bits of versions: equal up to a, different at b
    journals                          the first update whose loss has other bits: the version it was computed on differs

Nothing is computed again. What two records can show is a bracket (a, b] of versions, which is often one update wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.config import DECIDE_BITS
from hogwild.determinism.distance import Divergence, distance
from hogwild.determinism.sessions import Pair, differing_environments
from hogwild.determinism.states import opened
from hogwild.errors import printable, some_of
from hogwild.rules.registry import RULES, gives_same_bits, rule_class, title_of
from hogwild.run.saved.found import FoundRun, best_metric, differing_settings, read_found, setting_of
from hogwild.run.saved.origin import training_differences
from hogwild.run.saved.record import Record, read_record
from hogwild.run.saved.setting_words import called, worth_a_column

_FOLLOWS = {"data, its first batch,": ("seed", "batch_size", "drop_last", "shuffle", "data")}
"""What is recorded of a training → the settings that it follows from."""
_PLACES = {
    "flags.intra_op": "torch's threads",
    "instruction_sets.torch": "torch's instruction set",
    "instruction_sets.processor": "instruction sets",
    "libraries.mkl": "MKL",
    "libraries.onednn": "oneDNN",
}
"""What is recorded of an environment → what a person calls it."""


@dataclass(frozen=True)
class RecordedDifference:
    """Where two records first differ.

    Attributes:
        after: the versions up to here have the same bits, as far as was noted.
        version: this version differs; None where no record says so of any before the last update.
        parameters: the tensors that differ at `noted_at`, the first version noted by both that differs.
        update: the first update whose loss has other bits; None where all losses are equal.
        read: the version that this loss was computed on, where it is one number in both runs.
        order: the first version made by another update than in the other run; None where the order is the same.
        exact: versions are exact under both rules; under the rules in place they are not.
        shorter: the updates of the shorter run; None where both have as many.
    """

    after: int
    version: int | None
    parameters: tuple[str, ...] = ()
    noted_at: int | None = None
    update: int | None = None
    read: int | None = None
    order: int | None = None
    exact: bool = True
    shorter: int | None = None

    @property
    def from_the_start(self) -> bool:
        """True where already the first loss differs: initial model, data or loss are others."""
        return self.read == 0

    @property
    def words(self) -> str:
        """Where, in a few words."""
        if self.from_the_start:
            return "from the start on"
        if self.shorter and {self.version, self.update, self.order} == {None}:
            return f"after update {self.shorter - 1:,}, the last of the shorter one, as far as losses tell"
        if self.version is None or not self.exact:
            return "somewhere on the way" if self.update is None else f"by update {self.update:,} at the latest"
        if self.version == self.after + 1:
            return f"from update {self.after:,} on"
        if self.version == self.after + 2:
            return f"from update {self.after:,} or {self.after + 1:,} on"
        return f"from an update between {self.after:,} and {self.version - 1:,} on"

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**vars(self), "parameters": list(self.parameters)}


@dataclass(frozen=True)
class RunComparison:
    """Two recorded runs, compared.

    Attributes:
        a, b: the runs, as they say themselves.
        titles: what each is.
        settings: those that differ.
        training: what differs in optimizer, schedule, model and data beside the settings.
        environment: what is not the same in all their sessions; None where one of them has not recorded it.
        divergence: of the final states.
        first: where they first differ; None where the final states have the same bits.
    """

    a: FoundRun
    b: FoundRun
    titles: tuple[str, str]
    settings: tuple[Pair, ...]
    training: tuple[Pair, ...]
    environment: tuple[Pair, ...] | None
    divergence: Divergence
    first: RecordedDifference | None

    @property
    def sessions(self) -> int:
        """How often the two were begun or gone on with, in all."""
        return 2 + len(self.a.resumed) + len(self.b.resumed)

    @property
    def identical(self) -> bool:
        """True where the final states have the same bits."""
        return self.first is None

    @property
    def verdict(self) -> str:
        """What it comes to, in words."""
        told = worth_a_column([name for name, *_ in self.settings], (self.a, self.b))
        differing = [*map(called, told), *(name for name, *_ in self.training)]
        settings = f"settings differ in {some_of(differing, 4)}" if differing else "settings equal"
        if self.environment is None:
            where = "environment not recorded in both"
        else:
            names = [name for name, *_ in self.environment]
            where = f"environment differs in {some_of(names, 4)}" if names else f"environment equal{self.in_all}"
        if self.first is None:
            others = [name for name, same in self.beside if not same]
            return f"the same bits{f', but for the {some_of(others)}' if others else ''}; {settings}, {where}."
        return f"the runs differ {self.first.words}; {settings}, {where}.{self._why()}"

    @property
    def in_all(self) -> str:
        """To be said of what is equal, where there are more sessions than runs."""
        return f" in all {self.sessions} sessions" if self.sessions > 2 else ""

    @property
    def beside(self) -> list[tuple[str, bool]]:
        """(what, whether its bits are the same) of the states that both keep beside the final one."""
        digests = {
            "moving average": (self.a.ema_digest, self.b.ema_digest),
            "best version": (self.a.best.get("digest"), self.b.best.get("digest")),
        }
        return [(name, one == other) for name, (one, other) in digests.items() if one and other]

    def _why(self) -> str:
        rules = list(dict.fromkeys(str(setting_of(run, "update")) for run in (self.a, self.b)))
        decide = [name for name, *_ in self.settings if name in DECIDE_BITS] or self.training
        if decide or len(rules) > 1 or rules[0] not in RULES:
            return ""
        if not gives_same_bits(rules[0]):
            return f" Under {rules[0]} runs differ from each other anyway."
        if self.environment:
            return f" {rules[0]} promises the same bits in one environment only."
        return f" {rules[0]} promises the same bits here: something differs that is not recorded (hogwild check looks)."

    def metrics(self) -> Iterator[Pair]:
        """What both came to: metrics, loss, updates and time."""
        for name in dict.fromkeys([*self.a.metrics, *self.b.metrics]):
            yield name, self.a.metrics.get(name), self.b.metrics.get(name)
        for run in {self.a.best.get("metric"): self.a, self.b.best.get("metric"): self.b}.values():
            if run.best:
                values = [one.best if one.best.get("metric") == run.best["metric"] else {} for one in (self.a, self.b)]
                yield best_metric(run), values[0].get("value"), values[1].get("value")
                yield f"update of {best_metric(run)}", values[0].get("update"), values[1].get("update")
        for name in ("loss", "updates", "seconds", "samples_per_second"):
            key = "training loss" if name == "loss" and "loss" in self.a.metrics else name
            yield key, getattr(self.a, name), getattr(self.b, name)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values: what `hogwild compare --json` prints."""
        whole = self.divergence.to_dict()
        tensors = whole.pop("tensors")
        assert isinstance(tensors, list)
        return {
            "runs": [str(self.a.path), str(self.b.path)],
            "identical": self.identical,
            "digests": [self.a.digest, self.b.digest],
            "ema_digests": [self.a.ema_digest, self.b.ema_digest],
            "best": [dict(self.a.best) or None, dict(self.b.best) or None],
            "compensation": [list(self.a.compensation), list(self.b.compensation)],
            "settings": _as_json(self.settings),
            "training": _as_json(self.training),
            "environment": None if self.environment is None else _as_json(self.environment),
            "resumed": [len(self.a.resumed), len(self.b.resumed)],
            "resumed_from": [list(self.a.resumed), list(self.b.resumed)],
            "metrics": _as_json(tuple(self.metrics())),
            "divergence": {**whole, "tensors_differing": [one["name"] for one in tensors if not one["identical"]]},
            "first_difference": self.first.to_dict() if self.first else None,
            "verdict": self.verdict,
        }


def _as_json(pairs: Sequence[Pair]) -> dict[str, list[Any]]:
    return {name: [one, other] for name, one, other in pairs}


def compare_runs(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two run directories, as they were recorded.

    Raises:
        RunDirectoryError: one of them is not that of a whole run, or one of its files was changed.
        ArgumentError: a config.toml is not a configuration.
    """
    records = read_record(run_a), read_record(run_b)
    found = read_found(run_a), read_found(run_b)
    one, other = (record.origin for record in records)
    environment = None
    if one is not None and other is not None:
        differing = differing_environments(one, other)
        environment = tuple((_place(name), first, second) for name, first, second in differing)
    settings = [(name, *(setting_of(run, name) for run in found)) for name in differing_settings(found)]
    return RunComparison(
        a=found[0],
        b=found[1],
        titles=(_title(records[0]), _title(records[1])),
        settings=tuple((name, first, second) for name, first, second in settings),
        training=tuple(_training(records, [name for name, *_ in settings])),
        environment=environment,
        divergence=distance(records[0].state, records[1].state),
        first=_first(*records),
    )


def _title(record: Record) -> str:
    return title_of(record.config, str(record.content.get("kind", "")))


def _training(records: tuple[Record, Record], settings: Sequence[str]) -> Iterator[Pair]:
    """What was trained otherwise, each once; what follows from a setting that differs is left out."""
    one, other = (record.origin for record in records)
    if one is None or other is None:
        return
    try:
        found = list(training_differences(one.training, other.training))
    except (TypeError, AttributeError, KeyError):  # what `hogwild.launch` trains is told otherwise
        return
    model = [(name.removeprefix("model "), first, second) for name, first, second in found if name.startswith("model")]
    if model:
        yield "model", _own_parts(model, 1), _own_parts(model, 2)
    told: set[str] = set()
    for name, first, second in found:
        if name.startswith("model"):
            continue
        what = "lr_schedule" if name.startswith("lr_schedule") else name
        follows = {what.split(" of the optimizer")[0], *_FOLLOWS.get(what, ())} & set(settings)
        if what not in told and not follows:
            told.add(what)
            yield printable(what.rstrip(",")), printable(str(first)), printable(str(second))


def _own_parts(model: Sequence[Pair], side: int) -> str:
    """What of its model the other run has not, or has otherwise: 0.weight float32 [8, 2]."""
    named = [(pair[0].partition(" ")[2].strip("'"), pair[side]) for pair in model]
    parts = [f"{name} {form}" for name, form in named if form != "missing"]
    return printable(some_of(parts, 2)) if parts else "–"


def _place(name: str) -> str:
    return _PLACES.get(name, name.removeprefix("variables.").removeprefix("flags."))


# --- where they first differ


def _first(a: Record, b: Record) -> RecordedDifference | None:
    if a.digest == b.digest:
        return None
    exact = _is_versioned(a) and _is_versioned(b)
    equal = {version: a.seals[version].digest == b.seals[version].digest for version in set(a.seals) & set(b.seals)}
    wrong = min((version for version, same in equal.items() if not same), default=None)
    parameters = _differing(a, b, wrong) if wrong is not None else ()
    version = min((number for number in (wrong, a.updates if a.updates == b.updates else None) if number), default=None)
    after = max((number for number, same in equal.items() if same and (version is None or number < version)), default=0)
    update, read = _first_loss(a, b)
    if read and after < read and (version is None or read < version):
        version = read
    order = _first_order(a, b) if exact else None
    shorter = min(a.updates, b.updates) if a.updates != b.updates else None
    return RecordedDifference(after, version, parameters, wrong, update, read, order, exact, shorter)


def _is_versioned(record: Record) -> bool:
    return record.config.update in RULES and rule_class(record.config.update).versioned


def _differing(a: Record, b: Record, version: int) -> tuple[str, ...]:
    """The tensors whose marks differ at a version; none where the models have not the same tensors."""
    with opened(a.state) as one, opened(b.state) as other:
        names = one.names
        if names != other.names:
            return ()
    return tuple(a.seals[version].differing(b.seals[version], names))


def _first_loss(a: Record, b: Record) -> tuple[int | None, int | None]:
    """The first update whose loss has other bits, and the version that both computed it on."""
    common, at_a, at_b = np.intersect1d(a.journal["update"], b.journal["update"], return_indices=True)
    rows_a, rows_b = a.journal[at_a], b.journal[at_b]
    wrong = np.flatnonzero(rows_a["loss"].view(np.int64) != rows_b["loss"].view(np.int64))
    if not len(wrong):
        return None, None
    first = wrong[0]
    read = int(rows_a["version_read"][first])
    return int(common[first]), read if read == rows_b["version_read"][first] else None


def _first_order(a: Record, b: Record) -> int | None:
    """The first version that another update made, or that was computed on another version."""
    rows = min(len(a.journal), len(b.journal))
    differ = np.zeros(rows, bool)
    for name in ("update", "version_read"):
        differ |= a.journal[name][:rows] != b.journal[name][:rows]
    found = np.flatnonzero(differ)
    return int(found[0]) + 1 if len(found) else None
