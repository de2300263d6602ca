"""replay(): compute a recorded run again, in one worker, and say whether the bits are the same.

What was recorded is believed only as far as it goes: the files must have the bytes that run.json names, the journal
must be a possible one, and the bits of every version that it noted, and of the final state, are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hogwild.config import RunConfig
from hogwild.determinism.distance import distance
from hogwild.determinism.subject import OwnTraining
from hogwild.errors import ArgumentError, RunDirectoryError, printable
from hogwild.experiment import Training, load
from hogwild.optim.factory import Factory
from hogwild.rules.base import Rule
from hogwild.rules.registry import make_rule, names_where, quoted
from hogwild.rules.replayed import Replayed
from hogwild.run.directory import FORMAT, file_digest
from hogwild.run.progress import Progress
from hogwild.run.result import Run
from hogwild.run.training import train_config
from hogwild.shared.journal import Seal, load_rows

_MAX_RECORD_BYTES = 1 << 28


@dataclass(frozen=True)
class ReplayDifference:
    """Where a replay first leaves the record.

    The versions up to `after` have the recorded bits and version `version` has not: they differ by an update from
    `after` to `version` − 1. `parameters` are the tensors that differ in that version, and `update` the first
    update whose loss differs, where there is one.
    """

    after: int
    version: int
    parameters: tuple[str, ...]
    update: int | None


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    `equal`: every version that was noted and the final state have the recorded bits. `digest` is that of the replayed
    final state, `recorded` the one in run.json, `compared` the number of versions compared, the final one included.
    """

    equal: bool
    digest: str
    recorded: str
    updates: int
    compared: int
    seconds: float
    first_difference: ReplayDifference | None


@dataclass(frozen=True)
class Record:
    """A run directory, read and checked."""

    config: RunConfig
    journal: NDArray[Any]
    seals: Mapping[int, Seal]
    digest: str
    updates: int
    stopped: bool
    state: Path


def read_record(run_dir: Path) -> Record:
    """Read a run directory.

    Raises:
        RunDirectoryError: a file is missing, not what it should be, or has other bytes than run.json recorded.
        ArgumentError: its config.toml is not a configuration.
    """
    record = _read_json(run_dir / "run.json")
    for name, recorded in record["sha256"].items():
        if not (run_dir / name).is_file():
            raise RunDirectoryError(f"{run_dir} holds no {name}")
        if file_digest(run_dir / name) != recorded:
            raise RunDirectoryError(
                f"{run_dir / name} is not the file that was saved: its SHA-256 differs from run.json's"
            )
    return Record(
        config=RunConfig.load(run_dir / "config.toml"),
        journal=load_rows(run_dir / "journal.npy"),
        seals=_read_seals(run_dir / "run.json", record["seals"], record["updates"]),
        digest=record["digest"],
        updates=record["updates"],
        stopped=record["stopped"] is not None,
        state=run_dir / "model.safetensors",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise RunDirectoryError(f"{path} is not a plain file")
        if path.stat().st_size > _MAX_RECORD_BYTES:
            raise RunDirectoryError(f"{path} is over {_MAX_RECORD_BYTES} bytes, and no record is that long")
        record = json.loads(path.read_text(encoding="utf-8"))
        forms = {"format": int, "digest": str, "updates": int, "stopped": str | None, "seals": dict, "sha256": dict}
        wrong = [key for key, form in forms.items() if not isinstance(record[key], form)]
        if wrong or set(record["sha256"]) != {"model.safetensors", "journal.npy"}:
            raise RunDirectoryError(f"{path} is not the record of a run: {', '.join(wrong) or 'sha256'} is malformed")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirectoryError(f"{path.parent} holds no run.json; it is not the directory of a whole run") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {printable(str(error))}"
        raise RunDirectoryError(f"{path} is not the record of a run: {why}") from error
    if record["format"] != FORMAT:
        found = printable(str(record["format"]))
        raise RunDirectoryError(f"{path} has format {found}, and this version reads format {FORMAT}")
    return dict(record)


def _read_seals(path: Path, seals: Mapping[str, Any], updates: int) -> dict[int, Seal]:
    found = {}
    for version, seal in seals.items():
        known = version.isascii() and version.isdecimal() and len(version) < 20 and 0 < int(version) <= updates
        if not known or not isinstance(seal, list) or [type(part) for part in seal] != [str, str]:
            raise RunDirectoryError(f"{path} is not the record of a run: seals has {printable(version)!r}, malformed")
        found[int(version)] = Seal(*seal)
    return found


def replay(
    run_dir: str | Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: Factory | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    lr_schedule: Callable[[int], float] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Replay:
    """Compute a recorded run again, one update after another, and compare the bits.

    A run of an experiment needs nothing but its directory; for one made by `hogwild.train`, give the same initial
    `model`, `data`, `loss`, `optimizer`, `collate` and `lr_schedule` again. At most staleness max + 2 versions are in
    memory at a time.

    Raises:
        RunDirectoryError: the directory is not that of a whole run, or one of its files was changed.
        ArgumentError: the run's rule leaves no journal that determines it, or what it trained is not given.
    """
    record = read_record(Path(run_dir))
    rule = _rule_of(record)
    config = _config_of(record)
    if model is None:
        own = _experiment(config)
        problem, optimizer = own.build(config.seed), own.optimizer
        model, data, loss = problem.model, problem.data, problem.loss
    elif data is None or loss is None or optimizer is None:
        raise ArgumentError("model given without data, loss and optimizer; give all four, or none for an experiment")
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
        digest_every=min(record.seals, default=None),
    )
    return replace(config, epochs=None, updates=max(1, record.updates)) if record.stopped else config


def _rule_of(record: Record) -> Rule:
    config = record.config
    rule = make_rule(config.update, config)
    if not rule.versioned:
        raise ArgumentError(
            f"a run under {rule.name} cannot be replayed: what raced is in no journal; use "
            f"{quoted(names_where(lambda other: other.versioned), 'or')}"
        )
    _refuse_impossible(record.journal, record.updates)
    return rule if rule.tickets_per_update > 1 else Replayed(record.journal)


def _refuse_impossible(journal: NDArray[Any], updates: int) -> None:
    versions, read, update = journal["version"], journal["version_read"], journal["update"]
    if len(journal) != updates or not np.array_equal(versions, np.arange(1, updates + 1)):
        raise RunDirectoryError(f"the journal is damaged: its rows do not make versions 1 to {updates}")
    if (read < 0).any() or (read >= versions).any():
        raise RunDirectoryError("the journal is damaged: an update read a version that was not there yet")
    if (update < 0).any() or len(np.unique(update)) < updates:
        raise RunDirectoryError("the journal is damaged: an update is negative, or stands there twice")


def _experiment(config: RunConfig) -> OwnTraining:
    training = load(config.name)
    if not isinstance(training, Training):
        raise ArgumentError(f"{config.name} is a study, and only trainings can be replayed")
    return OwnTraining.of_experiment(training, config)


def _compare(record: Record, run: Run) -> Replay:
    names = sorted(run.state)
    versions = sorted(set(record.seals) & set(run.seals))
    wrong = next((version for version in versions if record.seals[version] != run.seals[version]), None)
    first = None
    if wrong is not None:
        after = max((version for version in versions if version < wrong), default=0)
        parameters = run.seals[wrong].differing(record.seals[wrong], names)
        first = ReplayDifference(after, wrong, tuple(parameters), _first_loss(record, run))
    elif run.digest != record.digest:
        state = distance(record.state, dict(run.state))
        parameters = [tensor.name for tensor in state.tensors if not tensor.identical]
        after = versions[-1] if versions else 0
        first = ReplayDifference(after, record.updates, tuple(parameters), _first_loss(record, run))
    return Replay(
        equal=first is None,
        digest=run.digest,
        recorded=record.digest,
        updates=run.updates,
        compared=len(versions) + 1,
        seconds=run.seconds,
        first_difference=first,
    )


def _first_loss(record: Record, run: Run) -> int | None:
    """The first update whose loss has other bits than the recorded one."""
    bits = [rows["loss"].view(np.int64) for rows in (record.journal, run.journal)]
    differing = np.flatnonzero(bits[0] != bits[1])
    return int(record.journal["update"][differing[0]]) if len(differing) else None
