"""A run directory, read back: what it must be, and the `Run` that it was saved from.

What was recorded is believed only as far as it goes: the files must have the bytes that run.json names, and all be of
one run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from hogwild.config import KINDS, RunConfig
from hogwild.errors import RunDirectoryError, one_line, printable
from hogwild.model.computed import compute_weights
from hogwild.optim.compensation import real_changes
from hogwild.run.audit import Audit, ParameterAudit
from hogwild.run.result import INTERRUPTED, Run, Staleness, WorkerUsage
from hogwild.run.saved.best import Best, load_best
from hogwild.run.saved.directory import (
    AVERAGED,
    BEST,
    FORMAT,
    METRICS,
    ORIGIN,
    SEALED_FILES,
    file_digest,
    finish_saving,
)
from hogwild.run.saved.failure import failure_in
from hogwild.run.saved.metrics import read_metrics
from hogwild.run.saved.origin import Origin, one_identity, read_origin
from hogwild.run.state_dicts import state_from, tensors_of
from hogwild.shared.hashing import equal_bits, is_extra
from hogwild.shared.journal import Seal, load_rows

_MAX_RECORD_BYTES = 1 << 28
_NO_RECORD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError, SafetensorError)
_FORMS: Mapping[str, Any] = {
    "format": int,
    "digest": str,
    "updates": int,
    "stopped": str | None,
    "seals": dict,
    "sha256": dict,
}


@dataclass(frozen=True)
class Record:
    """A run directory, read and checked.

    Attributes:
        config: its settings.
        journal: its rows.
        seals: version → the bits of that version.
        digest: of the final state.
        updates: how many there are.
        stopped: whether it ended before its last update.
        state: the file of the final state.
        average: that of its moving average, where there is one.
        origin: which run it is, and where it was made; None for one of version 0.2.0.
        content: all of run.json.
    """

    config: RunConfig
    journal: NDArray[Any]
    seals: Mapping[int, Seal]
    digest: str
    updates: int
    stopped: bool
    state: Path
    average: Path | None
    origin: Origin | None
    content: Mapping[str, Any]


def read_record(run_dir: Path) -> Record:
    """Read a run directory.

    Raises:
        RunDirectoryError: a file is missing, not what it should be, of another run, or has other bytes than run.json
            recorded.
        ArgumentError: its config.toml is not a configuration.
    """
    finish_saving(run_dir)
    record = read_json_record(run_dir / "run.json")
    for name, recorded in record["sha256"].items():
        if not (run_dir / name).is_file():
            raise RunDirectoryError(f"{run_dir} holds no {name}")
        if name == METRICS and record["stopped"] == INTERRUPTED:  # it has grown where the run goes on
            continue
        if file_digest(run_dir / name) != recorded:
            raise RunDirectoryError(
                f"{run_dir / name} is not the file that was saved: its SHA-256 differs from run.json's"
            )
    config = RunConfig.load(run_dir / "config.toml")
    _of_one_run(run_dir, record)
    return Record(
        config=config,
        journal=load_rows(run_dir / "journal.npy"),
        seals=_read_seals(run_dir / "run.json", record["seals"], record["updates"]),
        digest=record["digest"],
        updates=record["updates"],
        stopped=record["stopped"] is not None,
        state=run_dir / "model.safetensors",
        average=run_dir / AVERAGED if AVERAGED in record["sha256"] else None,
        origin=read_origin(run_dir),
        content=record,
    )


def has_ended(run_dir: Path) -> bool:
    """True where the directory holds the record of a run that was not interrupted.

    Raises:
        RunDirectoryError: its run.json is something else, or of another run.
    """
    record = _record_of_one_run(run_dir)
    return record is not None and record["stopped"] != INTERRUPTED


def origin_to_go_on(run_dir: Path) -> Origin | None:
    """Where the run in a directory comes from, be it whole or not; None for one of version 0.2.0.

    Raises:
        RunDirectoryError: its files are not of one run.
    """
    if _record_of_one_run(run_dir) is None:
        one_identity(run_dir)
    return read_origin(run_dir)


def _record_of_one_run(run_dir: Path) -> dict[str, Any] | None:
    finish_saving(run_dir)
    if not (run_dir / "run.json").exists():
        return None
    record = read_json_record(run_dir / "run.json")
    one_identity(run_dir, **{"run.json": record.get("run", "")})
    return record


def _of_one_run(run_dir: Path, record: Mapping[str, Any]) -> None:
    try:
        with safe_open(run_dir / "model.safetensors", "pt") as file:
            model = (file.metadata() or {}).get("run", "")
    except (OSError, SafetensorError) as error:
        why = printable(str(error))
        raise RunDirectoryError(f"{run_dir / 'model.safetensors'} is not the state of a model: {why}") from error
    own = {"model.safetensors": model} if model else {}  # whose bytes run.json names
    one_identity(run_dir, **{"run.json": record.get("run", ""), **own})


def read_json_record(path: Path) -> dict[str, Any]:
    """What a run.json holds, its form checked; the files beside it are not looked at.

    Raises:
        RunDirectoryError: it is missing, or not the record of a run.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise RunDirectoryError(f"{path} is not a plain file")
        if path.stat().st_size > _MAX_RECORD_BYTES:
            raise RunDirectoryError(f"{path} is over {_MAX_RECORD_BYTES} bytes, and no record is that long")
        record = json.loads(path.read_text(encoding="utf-8"))
        wrong = [key for key, form in _FORMS.items() if not isinstance(record[key], form)]
        if not isinstance(record.get("run", ""), str):
            wrong.append("run")
        if record.get("kind", "") not in ("", *KINDS):
            wrong.append("kind")
        if wrong or set(record["sha256"]) - {AVERAGED, METRICS} != set(SEALED_FILES):
            raise RunDirectoryError(f"{path} is not the record of a run: {', '.join(wrong) or 'sha256'} is malformed")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirectoryError(_no_record(path.parent)) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, RunDirectoryError):
            raise
        why = f"{type(error).__name__}: {printable(str(error))}"
        raise RunDirectoryError(f"{path} is not the record of a run: {why}") from error
    if not 1 <= record["format"] <= FORMAT:
        found = printable(str(record["format"]))
        raise RunDirectoryError(f"{path} has format {found}, and this version reads formats 1 to {FORMAT}")
    return dict(record)


def _no_record(run_dir: Path) -> str:
    """Why a folder holds no run.json, in words."""
    none = f"{run_dir} holds no run.json"
    if not run_dir.is_dir():
        return f"{none}: {'it is no folder' if run_dir.exists() else 'there is no such folder'}"
    if failure := failure_in(run_dir):
        return f"{none}: its run failed ({failure})"
    if (run_dir / ORIGIN).exists() or (run_dir / "config.toml").exists():
        return f"{none}: its run was interrupted, or trains still"
    return f"{none}; it is not the directory of a whole run"


def _read_seals(path: Path, seals: Mapping[str, Any], updates: int) -> dict[int, Seal]:
    found = {}
    for version, seal in seals.items():
        known = version.isascii() and version.isdecimal() and len(version) < 20 and 0 < int(version) <= updates
        if not known or not isinstance(seal, list) or [type(part) for part in seal] != [str, str]:
            raise RunDirectoryError(f"{path} is not the record of a run: seals has {printable(version)!r}, malformed")
        found[int(version)] = Seal(*seal)
    return found


def saved_run(run_dir: Path) -> Run:
    """The `Run` that was saved in a directory; errors are those of `read_record`."""
    record = read_record(run_dir)
    content, origin = record.content, record.origin
    evaluations, logged = read_metrics(run_dir / METRICS)
    if content["stopped"] == INTERRUPTED:  # what has come to the file since is of a run that went on, and was killed
        applied = {*range(record.updates), *record.journal["update"].tolist()}
        evaluations = [row for row in evaluations if row["update"] <= record.updates]
        logged = [row for row in logged if row["update"] in applied]
    try:
        return Run(
            config=record.config,
            state=_state_in(record.state),
            digest=record.digest,
            updates=record.updates,
            samples=int(content.get("samples", round(content["samples_per_second"] * content["seconds"]))),
            seconds=float(content["seconds"]),
            startup_seconds=float(content["startup_seconds"]),
            journal=record.journal,
            seals=record.seals,
            evaluations=tuple(evaluations),
            logged=tuple(logged),
            workers=tuple(_usage(part) for part in content["usage"]),
            staleness=Staleness(**content["staleness"]),
            failures=tuple(content["failures"]),
            in_doubt=tuple(content["in_doubt"]),
            stopped=content["stopped"],
            audit=_audit(content["audit"]),
            out=run_dir,
            samples_before=int(content.get("samples_before", 0)),
            seconds_before=float(content.get("seconds_before", 0.0)),
            compensation=real_changes(content.get("compensation", ())),
            curvature=None if (curved := content.get("curvature")) is None else float(curved),
            origin=origin,
            best=_best(run_dir, content),
            ema_state=_state_in(record.average) if record.average is not None else None,
            kind=str(content.get("kind", "")),
            kind_because=str(content.get("kind_because", "")),
            nodes=int(content.get("nodes", 1)),
            in_tickets=origin is not None and origin.maker == "launch",
            updates_per_epoch=None if (each := content.get("updates_per_epoch")) is None else max(1, int(each)),
        )
    except _NO_RECORD as error:
        why = f"{type(error).__name__}: {printable(str(error))}"
        raise RunDirectoryError(f"{run_dir / 'run.json'} is not the record of a run: {why}") from error


def _state_in(path: Path) -> dict[str, Any]:
    """The state that a file holds, whose bytes are those that were saved."""
    with safe_open(path, "pt") as file:
        return state_from(load_file(path), file.metadata() or {})


def _best(run_dir: Path, content: Mapping[str, Any]) -> Best | None:
    """The best version that run.json names. Where an interrupted run went on, the file may hold a later one."""
    named = content.get("best")
    if named is None:
        return None
    found = load_best(run_dir, content.get("run", ""))
    if found is None:
        raise RunDirectoryError(f"{run_dir} holds no {BEST}")
    if content["stopped"] != INTERRUPTED and (found.update, found.digest) != (named["update"], named["digest"]):
        raise RunDirectoryError(f"{run_dir / BEST} is not the file that was saved: its digest differs from run.json's")
    return found


def _usage(part: Mapping[str, Any]) -> WorkerUsage:
    unknown = {name: nan for name in ("cpu_seconds", "waited_seconds") if part[name] is None}
    return WorkerUsage(**{**part, **unknown})


def _audit(found: Mapping[str, Any] | None) -> Audit | None:
    if found is None:
        return None
    own = {key: found[key] for key in ("projection", "bound", "seconds", "nbytes")}
    return Audit(**own, parameters=tuple(ParameterAudit(**part) for part in found["parameters"]))


def fill(model: nn.Module, record: Run) -> None:
    """Load a saved state into a model: into the tensors that its state dict shows, or, where a hook computes these, by
    `load_state_dict`, as its extra state.

    Raises:
        RunDirectoryError: it is that of another model, or cannot be loaded.
    """
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name, value in tensors_of(record.state).items():
        if name not in own or own[name].shape != value.shape or own[name].dtype != value.dtype:
            raise RunDirectoryError(f"{record.out} is of a run with another model: {printable(name)} differs")
        with torch.no_grad():
            own[name].copy_(value)
    why = ""
    if any(map(is_extra, record.state)) or not _holds(model, record):
        try:
            model.load_state_dict(record.state, strict=False)  # its file may lack extra state
        except Exception as error:  # code of the model's
            why = f": {one_line(error)}"
        if not _holds(model, record):
            raise RunDirectoryError(f"{record.out} has ended, and its state cannot be loaded into the model{why}")
    compute_weights(model)


def _holds(model: nn.Module, record: Run) -> bool:
    own = model.state_dict()
    return all(equal_bits(own[name], value) for name, value in tensors_of(record.state).items())
