"""Runs found on disk: each directory with what its record says, quickly and without believing that it is whole.

    folder → every folder in it, at any depth → a run (whole, not ended or broken), or something else

Nothing is written, no hash is computed and no tensor is read: hundreds of runs take a moment. What a record says is
verified where it matters: by `read_record`, which comparing, reporting and replaying use.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

from hogwild.config import MAX_CONFIG_BYTES, RunConfig
from hogwild.errors import ArgumentError, HogwildError, RunDirectoryError, printable, some_of
from hogwild.optim.compensation import real_changes
from hogwild.run.result import INTERRUPTED
from hogwild.run.saved.directory import CHECKPOINT, LOCK, METRICS, ORIGIN, SAVED
from hogwild.run.saved.failure import failure_in
from hogwild.run.saved.metrics import metrics_in, read_metrics
from hogwild.run.saved.origin import Origin, read_origin
from hogwild.run.saved.record import read_json_record
from hogwild.run.saved.writer import writer_named

DONE, ENDED_EARLY, RUNNING, FAILED, KILLED = "done", "ended early", "running", "failed", "killed"
UNFINISHED, BROKEN = "unfinished", "broken"
CHECK, STUDY, NO_RUN = "check", "study", "no run"
_RECORD, _CONFIG = "run.json", "config.toml"
DEFAULTS = {one.name: one.default for one in fields(RunConfig) if one.metadata}
"""The settings that have plain values → what they are where nobody says otherwise."""
WATCHING = frozenset(one.name for one in fields(RunConfig) if one.metadata.get("watches"))
"""Those of them that change nothing of what is trained."""
OWN_CODE = "own."  # how the names of what is told of a person's own file begin
_PARAMETERS = f"{OWN_CODE}parameters."
BEST_OF = "best_"  # how the names begin under which values of best versions are listed
_OTHERS = {"check.json": CHECK, "findings.json": STUDY}
_LOG = ".log"  # a folder of nothing else is not worth a line
_DEPTH = 32  # folders in folders, at most


@dataclass(frozen=True)
class FoundRun:
    """A run directory, as it says itself.

    Attributes:
        path: the directory.
        status: done, ended early, interrupted, running (its process lives), failed, killed (nobody is at work, and it
            neither ended nor failed), broken, or unfinished: another machine is or was at work.
        why: why it ended early or failed, which process trains it, or what is broken about it; empty otherwise.
        go_on: what goes on with it from its last checkpoint: a command, or a call; empty where nothing can.
        settings: name → value, as in its config.toml and its caller's own `config`.
        metrics: of its last evaluation; None where JSON has no such number.
        loss: of training, mean of the last epoch; None where there is none.
        updates, seconds, samples_per_second, digest: as in run.json; None where it is not finished.
        best: metric, update, value and digest of the version that was kept as the best; empty where none was.
        ema_digest: of the moving average; None where there is none.
        compensation: what was changed because gradients were stale, in words.
        diverged: that its loss has risen above where it began, in words; empty where it has not.
        resumed: the versions from which it was gone on with.
    """

    path: Path
    status: str
    why: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    loss: float | None = None
    updates: int | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    digest: str | None = None
    best: Mapping[str, Any] = field(default_factory=dict)
    ema_digest: str | None = None
    compensation: tuple[str, ...] = ()
    resumed: tuple[int, ...] = ()
    go_on: str = ""
    diverged: str = ""

    @property
    def recorded(self) -> bool:
        """True where the folder holds the record of a run that nobody has gone on with."""
        return self.whole or self.status == INTERRUPTED

    @property
    def whole(self) -> bool:
        """True where it has ended as it should, so that its metrics are those of the training."""
        return self.status in (DONE, ENDED_EARLY)


@dataclass(frozen=True)
class OtherFolder:
    """A folder without a run in it, at any depth: what it is (a check, a study, no run), and a few words."""

    path: Path
    what: str
    why: str


@dataclass(frozen=True)
class FoundFolders:
    """What lies in some folders: the runs, and what is no run."""

    runs: tuple[FoundRun, ...]
    others: tuple[OtherFolder, ...]


def find_runs(folders: Sequence[Path]) -> FoundFolders:
    """All run directories in some folders, at any depth, each once, in the order of their paths.

    A folder may be a run directory itself. Hidden folders are left out.

    Raises:
        ArgumentError: one of them is not a folder.
    """
    seen: set[tuple[int, int]] = set()
    runs: list[FoundRun] = []
    others: list[OtherFolder] = []
    for folder in folders:
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise ArgumentError(f"{str(folder)!r} {what}; name the folder of a run, or one that holds runs")
        found = _walk(folder, seen, 0)
        runs.extend(found.runs)
        others.extend(found.others)
    return FoundFolders(tuple(runs), tuple(others))


def the_run_in(folder: Path) -> FoundRun:
    """The run whose directory that folder is.

    Raises:
        ArgumentError: it is none.
        RunDirectoryError: it is broken.
    """
    runs = {run.path: run for run in find_runs([folder]).runs}
    found = runs.get(folder)
    if found is None:
        lists = f"; hogwild runs {quote(str(folder))} lists {'them' if len(runs) > 1 else 'it'}" if runs else ""
        holds = f"{len(runs)} runs" if len(runs) > 1 else "one" if runs else "none"
        raise ArgumentError(f"{str(folder)!r} is not the folder of a run, and holds {holds}{lists}")
    if found.status == BROKEN:
        raise RunDirectoryError(found.why)
    return found


def _walk(folder: Path, seen: set[tuple[int, int]], depth: int) -> FoundFolders:
    nothing = FoundFolders((), ())
    try:
        stat = folder.stat()
        if (stat.st_dev, stat.st_ino) in seen or depth > _DEPTH:
            return nothing
        seen.add((stat.st_dev, stat.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: _natural(entry.name))
    except OSError as error:
        return FoundFolders((), (OtherFolder(folder, NO_RUN, f"it cannot be read: {error.strerror}"),))
    names = {entry.name for entry in entries}
    if names and all(name.endswith(_LOG) for name in names):
        return nothing
    inner = [_walk(Path(entry.path), seen, depth + 1) for entry in entries if _is_folder(entry)]
    runs = [run for found in inner for run in found.runs]
    others = [other for found in inner for other in found.others]
    if _is_run(folder, names):
        return FoundFolders((read_found(folder), *runs), tuple(other for other in others if other.what != NO_RUN))
    known = next((what for name, what in _OTHERS.items() if name in names), None)
    if known is not None:
        others.insert(0, OtherFolder(folder, known, f"a saved {known}"))
    elif not runs and all(other.what == NO_RUN for other in others):
        return FoundFolders((), (OtherFolder(folder, NO_RUN, _holds(names)),))
    return FoundFolders(tuple(runs), tuple(others))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir() and not entry.name.startswith(".")
    return False


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts run-2 before run-10."""
    parts: list[str] = [""]
    for letter in name:
        if parts[-1] and letter.isdigit() != parts[-1][-1].isdigit():
            parts.append("")
        parts[-1] += letter
    return [(int(part), part) if part.isascii() and part.isdigit() else (-1, part) for part in parts]


def _holds(names: set[str]) -> str:
    return f"it holds {some_of(sorted(names))}" if names else "it is empty"


def _is_run(folder: Path, names: set[str]) -> bool:
    """A config.toml alone may be anybody's: it must have settings of a run."""
    if names & {_RECORD, CHECKPOINT, SAVED}:
        return True
    if ORIGIN not in names and _CONFIG not in names:
        return False
    return ORIGIN in names or {"update", "workers"} <= set(_toml(folder / _CONFIG))


def read_found(folder: Path) -> FoundRun:
    """What a run directory says of itself; one that is not whole is a `FoundRun` too."""
    try:
        origin = read_origin(_file(folder, ORIGIN).parent)
        settings, record = _settings(folder, origin), _file(folder, _RECORD)
        found = _ended(folder, read_json_record(record), settings) if record.exists() else None
        if found is None or found.status == INTERRUPTED:
            found = _not_ended(folder, settings, found)
            found = replace(found, go_on=_going_on(folder, origin) if found.status != RUNNING else "")
        return replace(found, resumed=origin.starts if origin is not None else ())
    except HogwildError as error:
        return FoundRun(folder, BROKEN, printable(str(error), 400))


def _file(folder: Path, name: str) -> Path:
    """A file of the run: also where whoever saved it was killed before it was moved to its place."""
    saved = folder / SAVED / name
    return saved if saved.exists() else folder / name


def _ended(folder: Path, content: Mapping[str, Any], settings: Mapping[str, Any]) -> FoundRun:
    stopped = content["stopped"]
    missing = [name for name in content["sha256"] if not _file(folder, name).is_file()]
    if missing:
        raise RunDirectoryError(f"{folder} holds no {' and no '.join(missing)}")
    status = DONE if stopped is None else INTERRUPTED if stopped == INTERRUPTED else ENDED_EARLY
    metrics = content.get("metrics")
    return FoundRun(
        path=folder,
        status=status,
        why=printable(stopped) if status == ENDED_EARLY else "",
        settings=settings,
        metrics={str(name): _number(value) for name, value in _mapping(metrics).items()},
        loss=_number(content.get("loss")),
        updates=content["updates"],
        seconds=_number(content.get("seconds")),
        samples_per_second=_number(content.get("samples_per_second")),
        digest=printable(content["digest"]),
        best=best_in(content.get("best")),
        ema_digest=_text(content.get("ema_digest")),
        compensation=real_changes(printable(str(one)) for one in content.get("compensation") or ()),
        diverged=_text(content.get("diverged")) or "",
    )


def best_in(found: Any) -> dict[str, Any]:
    """What a record says of the best version; empty where it says nothing that can be read."""
    found = _mapping(found)
    metric, update, value = found.get("metric"), found.get("update"), _number(found.get("value"))
    if not isinstance(metric, str) or not isinstance(update, int) or value is None:
        return {}
    return {"metric": printable(metric), "update": update, "value": value, "digest": _text(found.get("digest"))}


def _not_ended(folder: Path, settings: Mapping[str, Any], interrupted: FoundRun | None) -> FoundRun:
    """A run that trains, failed, was killed or interrupted; the metrics are those of the last evaluation so far."""
    writer, failure = writer_named(folder / LOCK), failure_in(folder)
    if writer is not None and writer.lives:
        status, why = RUNNING, f"process {writer.pid} trains it"
    elif failure is not None:
        status, why = FAILED, failure
    elif writer is not None and writer.lives is None:
        status, why = UNFINISHED, f"process {writer.pid} on {writer.host} trains it, or was killed"
    elif interrupted is not None and writer is None:
        return interrupted
    else:
        status, why = KILLED, ""
    evaluations, _ = read_metrics(folder / METRICS)
    last = evaluations[-1] if evaluations else {}
    metrics = {name: _number(value) for name, value in metrics_in(last).items()}
    return FoundRun(folder, status, why, settings, metrics)


def _going_on(folder: Path, origin: Origin | None) -> str:
    return going_on_by(folder, origin) if (folder / CHECKPOINT).exists() else ""


def going_on_by(folder: Path, origin: Origin | None) -> str:
    """What goes on with a run in its folder, from its last checkpoint: a command, or a call."""
    if origin is None or origin.made_by_command:
        return f"hogwild run --resume {quote(str(folder))}"
    return f"hogwild.{origin.maker}(..., resume={str(folder)!r}, out={str(folder)!r})"


def _text(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        return None
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def best_metric(run: FoundRun) -> str:
    """The name under which the value of its best version is listed: best_accuracy; empty where none was kept."""
    return f"{BEST_OF}{run.best['metric']}" if run.best else ""


# --- settings


def setting_of(run: FoundRun, name: str) -> Any:
    """The value of a setting in a run; one that is not in its files has its default."""
    return run.settings.get(name, DEFAULTS.get(name))


def setting_names(runs: Sequence[FoundRun]) -> list[str]:
    """The settings that any of them has, in the order of `RunConfig`, then those of a person's own."""
    there = dict.fromkeys(name for run in runs for name in run.settings)
    return [*(name for name in DEFAULTS if name in there), *(name for name in there if name not in DEFAULTS)]


def differing_settings(runs: Sequence[FoundRun]) -> list[str]:
    """Those of the settings that are not equal in all runs."""
    first = runs[0] if runs else None
    return [
        name
        for name in setting_names(runs)
        if first is not None and any(differ(setting_of(run, name), setting_of(first, name)) for run in runs)
    ]


def differ(one: Any, other: Any) -> bool:
    """True where two values of a setting are not the same; NaN is NaN."""
    return bool(one != other and not (one != one and other != other))


def _settings(folder: Path, origin: Origin | None) -> dict[str, Any]:
    """Those of config.toml; and of a training by a Python program what it alone knows: its optimizer and its config."""
    path = _file(folder, _CONFIG)
    if not path.is_file():
        raise RunDirectoryError(f"{folder} holds no {_CONFIG}")
    values = _toml(path)
    if not values:  # RunConfig says what is wrong with it
        RunConfig.load(path)
    values.pop("run", None)
    tables = [name for name in ("groups", "changes") if values.pop(name, None)]
    found = {}
    for name, value in _leaves(values):
        parameter = name.removeprefix(_PARAMETERS)
        found[name if parameter in DEFAULTS else parameter] = value
    for name in tables:
        found[name] = "; ".join(map(str, getattr(RunConfig.load(path), name)))
    if origin is not None:
        if origin.of_a_kernel:
            found.pop("optimizer", None)
        found |= {name: value for name, value in _own(origin) if found.get(name) in (None, "")}
    return {name: value for name, value in found.items() if value != ""}


def _toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; nothing where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size <= MAX_CONFIG_BYTES:
            return tomllib.loads(path.read_text(encoding="utf-8"))
    return {}


def _own(origin: Origin) -> Iterator[tuple[str, Any]]:
    if origin.optimizer is not None:
        yield "optimizer", origin.optimizer
    if origin.lr is not None:
        yield "lr", origin.lr
    yield from _leaves(_mapping(origin.training.get("config")))


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by name, those in a table by the names of both, as in `model.width`."""
    for name, value in values.items():
        key = printable(f"{before}{name}")
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, _plain(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: those of TOML that it has not, which are dates, as text."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | None) else printable(str(value))
