"""replay(): compute a recorded run again, in one worker, and say whether the bits are the same.

What was recorded is believed only as far as it goes: the files must be what `hogwild.run.saved.record` asks of them,
the journal must be a possible one, and the bits of every version that it noted, and of the final state, are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.data.sources import batches_of
from hogwild.determinism.distance import distance
from hogwild.determinism.subject import OwnTraining
from hogwild.errors import ArgumentError, RunDirectoryError, printable, short_traceback
from hogwild.experiment import Training, experiment_of, names
from hogwild.kernels.kernel import Kernel
from hogwild.optim.factory import Factory
from hogwild.optim.rates import LRSchedule
from hogwild.rules.base import Rule
from hogwild.rules.registry import make_rule, names_where, quoted
from hogwild.rules.replayed import Replayed
from hogwild.run.job import source_in
from hogwild.run.progress import Progress
from hogwild.run.result import Run
from hogwild.run.saved.environment import environment, environment_differences
from hogwild.run.saved.origin import compensation_differences, refuse_made_by_python
from hogwild.run.saved.record import Record, read_record
from hogwild.run.state_dicts import tensors_of
from hogwild.run.training import checked_folder, train_config


@dataclass(frozen=True)
class ReplayDifference:
    """Where a replay first leaves the record.

    The versions up to `after` have the recorded bits and version `version` has not: they differ by an update from
    `after` to `version` − 1. `parameters` are the tensors that differ in that version, and `update` the first
    update whose loss differs, where there is one; `on_equal` says that the version it was computed on has the recorded
    bits.
    """

    after: int
    version: int
    parameters: tuple[str, ...]
    update: int | None
    on_equal: bool = False


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    `equal`: every version that was noted, the final state and its moving average have the recorded bits. `digest` is
    that of the replayed final state, `recorded` the one in run.json, `compared` the number of versions compared, the
    final one included. `environment` says what differs between where it was recorded and here: what makes up for stale
    gradients, then versions, processor, flags, code; `moved` whether any of the latter does.
    """

    equal: bool
    digest: str
    recorded: str
    updates: int
    compared: int
    seconds: float
    first_difference: ReplayDifference | None
    environment: tuple[str, ...] = ()
    moved: bool = False

    @property
    def conclusion(self) -> str:
        """The verdict in words."""
        if self.equal:
            return "the run has the bits that its record says"
        first = self.first_difference
        if self.moved:
            return f"the run was made elsewhere ({self.environment[0]}), and has other bits here"
        if first is not None and first.update == 0:
            return (
                "the very first loss is not the recorded one: the initial model, the data or the loss is not that of "
                "the run"
            )
        if first is not None and first.on_equal:
            return (
                f"the loss of update {first.update:,} is another one, on a version with the recorded bits: the data or "
                "the loss is not that of the run"
            )
        why = f" ({self.environment[0]})" if self.environment else ""
        noted = first is None or first.update is None or first.version - first.after <= 1
        others = "the optimizer or the schedule" if noted else "the data, the loss, the optimizer or the schedule"
        return f"the run is not what its record says, or {others} is not that of the run{why}"

    def __str__(self) -> str:
        """The verdict in one line."""
        return f"replay of {self.updates:,} updates: {self.conclusion}"


@short_traceback
def replay(
    run_dir: str | Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: Factory | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    lr_schedule: LRSchedule | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Replay:
    """Compute a recorded run again, one update after another, and compare the bits.

    A run of an experiment needs nothing but its directory; for one made by `hogwild.train`, give the same initial
    `model`, `data`, `loss`, `optimizer`, `collate` and `lr_schedule` again; for one made by `hogwild.train_kernel`,
    `model` and, as `data`, the kernel. At most staleness max + 2 versions are in
    memory at a time.

    Raises:
        RunDirectoryError: the directory is not that of a whole run, or one of its files was changed.
        ArgumentError: the run's rule leaves no journal that determines it, or what it trained is not given.
    """
    run_dir = checked_folder("run_dir", run_dir)
    record = read_record(run_dir)
    rule = _rule_of(record)
    config = _config_of(record)
    if model is None:
        refuse_made_by_python(run_dir, lambda name: name not in names(), replayed=True)
        own = _experiment(config)
        problem, optimizer = own.build(config.seed), own.optimizer
        model, data, loss = problem.model, problem.data, problem.loss
    elif not isinstance(data, Kernel) and (data is None or loss is None or optimizer is None):
        raise ArgumentError("model given without data, loss and optimizer; give all four, or none for an experiment")
    _refuse_other_length(record, config, rule.tickets_per_update * rule.batches_per_ticket, data, collate)
    run = train_config(
        config,
        model,
        data,
        loss,
        optimizer=optimizer,
        rule=rule,
        collate=collate,
        lr_schedule=lr_schedule,
        progress=progress,
    )
    return _compare(record, run)


def _config_of(record: Record) -> RunConfig:
    """The recorded settings for one worker that notes the same versions and saves nothing."""
    config = replace(
        record.config,
        workers=1,
        kind="processes",
        checkpoint_every=None,
        keep_best=None,
        patience=None,
        digest_every=min(record.seals, default=None),
    )
    return replace(config, limit_updates=max(1, record.updates)) if record.stopped else config


def _refuse_other_length(record: Record, config: RunConfig, per_update: int, data: Any, collate: Any) -> None:
    """Refuse data that make another number of updates, of so many batches each, than the run made.

    Raises:
        ArgumentError: they do.
    """
    if config.epochs is None or isinstance(data, Kernel):
        return
    source = source_in(data, config, collate)
    batches = batches_of(source, epochs=config.epochs, updates=None, per_update=per_update, limit=config.limit_updates)
    if (updates := -(-batches // per_update)) != record.updates:
        raise ArgumentError(
            f"the data make {updates:,} updates, and the run made {record.updates:,}: they are not those of the run"
        )


def _rule_of(record: Record) -> Rule:
    config, origin = record.config, record.origin
    own = origin.training.get("rule") if origin is not None else None
    if own is not None:
        raise ArgumentError(
            f"the run trained under a rule of its program's own, {config.update!r} ({printable(str(own))}), and those "
            f"of hogwild alone are replayed; train again there, and compare both by hogwild compare"
        )
    rule = make_rule(config.update, config)
    if origin is not None and (nodes := origin.training.get("nodes")) is not None:
        raise ArgumentError(
            f"this is the journal of one of {nodes} machines that averaged (average_every {config.average_every}), "
            f"which alone does not determine the run; machines that train together leave one that does"
        )
    if not rule.versioned:
        raise ArgumentError(
            f"a run under {rule.name} cannot be replayed: what raced is in no journal; use "
            f"{quoted(names_where(lambda other: other.versioned), 'or')}"
        )
    _refuse_impossible(record.journal, record.updates)
    if rule.tickets_per_update > 1:
        return rule
    return make_rule(Replayed(record.journal, rule.made_up_for(config.workers)), config)


def _refuse_impossible(journal: NDArray[Any], updates: int) -> None:
    versions, read, update = journal["version"], journal["version_read"], journal["update"]
    if len(journal) != updates or not np.array_equal(versions, np.arange(1, updates + 1)):
        raise RunDirectoryError(f"the journal is damaged: its rows do not make versions 1 to {updates}")
    if (read < 0).any() or (read >= versions).any():
        raise RunDirectoryError("the journal is damaged: an update read a version that was not there yet")
    if (update < 0).any() or len(np.unique(update)) < updates:
        raise RunDirectoryError("the journal is damaged: an update is negative, or stands there twice")


def _experiment(config: RunConfig) -> OwnTraining:
    training = experiment_of(config)
    if not isinstance(training, Training):
        raise ArgumentError(f"{config.name} is a study, and only trainings can be replayed")
    return OwnTraining.of_experiment(training, config)


def _compare(record: Record, run: Run) -> Replay:
    tensors = sorted(tensors_of(run.state))
    versions = sorted(set(record.seals) & set(run.seals))
    wrong = next((version for version in versions if record.seals[version] != run.seals[version]), None)
    first = None
    if wrong is not None:
        after = max((version for version in versions if version < wrong), default=0)
        parameters = run.seals[wrong].differing(record.seals[wrong], tensors)
        first = _difference(record, run, versions, after, wrong, parameters)
    elif run.digest != record.digest:
        state = distance(record.state, dict(run.state))
        parameters = [tensor.name for tensor in state.tensors if not tensor.identical]
        first = _difference(record, run, versions, max(versions, default=0), record.updates, parameters)
    elif record.average is not None and run.ema_state is not None:
        first = _averages_differ(record, record.average, dict(run.ema_state))
    moved = _moved(record)
    # What makes up for stale gradients follows from the first batches; the first loss comes before any of it.
    otherwise = () if first is not None and first.update == 0 and not moved else tuple(_made_up_otherwise(record, run))
    return Replay(
        equal=first is None,
        digest=run.digest,
        recorded=record.digest,
        updates=run.updates,
        compared=len(versions) + 1,
        seconds=run.seconds,
        first_difference=first,
        environment=(*otherwise, *moved),
        moved=bool(moved),
    )


def _made_up_otherwise(record: Record, run: Run) -> Iterator[str]:
    """What was done about stale gradients, where another version or processor does something else."""
    recorded = record.origin.compensation if record.origin is not None else None
    for before, after in compensation_differences(recorded, run.compensation):
        yield f"what makes up for stale gradients: {before}, and here {after}"


def _difference(
    record: Record, run: Run, noted: Sequence[int], after: int, version: int, parameters: Sequence[str]
) -> ReplayDifference:
    """Where they part: after one version, which is equal as those `noted` up to it are, and before another."""
    update, read = _first_loss(record, run)
    on_equal = read is not None and (read == 0 or (read in noted and read <= after))
    return ReplayDifference(after, version, tuple(parameters), update, on_equal)


def _averages_differ(record: Record, recorded: Path, average: dict[str, Tensor]) -> ReplayDifference | None:
    """Where the moving averages of equal models differ; None where they do not."""
    differing = [f"the average of {one.name}" for one in distance(recorded, average).tensors if not one.identical]
    return ReplayDifference(0, record.updates, tuple(differing), None) if differing else None


def _moved(record: Record) -> tuple[str, ...]:
    """What differs between the environments that the run was made in and this one, each told once."""
    if record.origin is None:
        return ()
    now = environment()
    return tuple(
        dict.fromkeys(text for one in record.origin.environments for text in environment_differences(one, now))
    )


def _first_loss(record: Record, run: Run) -> tuple[int, int] | tuple[None, None]:
    """The first update whose loss has other bits than the recorded one, and the version that it read."""
    made = min(len(record.journal), len(run.journal))
    bits = [rows["loss"][:made].view(np.int64) for rows in (record.journal, run.journal)]
    differing = np.flatnonzero(bits[0] != bits[1])
    if not len(differing):
        return None, None
    row = record.journal[differing[0]]
    return int(row["update"]), int(row["version_read"])
