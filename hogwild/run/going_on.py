"""What a resumed run takes over from the run it goes on with, what must be the same, and what is changed on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hogwild.config import CHANGEABLE, DECIDE_BITS, RunConfig, of_python, refuse_fixed
from hogwild.errors import ArgumentError, RunDirectoryError, a_type, printable
from hogwild.run.job import Job
from hogwild.run.saved.begun_with import OF_THE_JUDGED, begun_with
from hogwild.run.saved.checkpoint import peek
from hogwild.run.saved.directory import CHECKPOINT, SAVED
from hogwild.run.saved.found import differ
from hogwild.run.saved.origin import read_origin
from hogwild.run.saved.record import has_ended

_LIMIT = "limit_updates"
_KEPT = "(checkpoint_every keeps one); begin it again"
_LENGTHS = ("epochs", "updates", _LIMIT)
_NOT_SHORTER = "a run cannot be made shorter; Ctrl-C or stop= ends it where it is"


def going_on(job: Job) -> Job:
    """The job with the settings that it goes on with: those of the run, and what is changed from here on.

    Raises:
        ArgumentError: a setting that decides bits differs and is not changed on purpose, or it cannot be changed.
        RunDirectoryError: the files of the run are not of one run.
    """
    if not isinstance(job.change, Mapping):
        raise ArgumentError(f"change {job.change!r} is {a_type(job.change)}; change={{'lr': 0.03}} works")
    if job.resume is None:
        if job.change:
            raise ArgumentError(
                f"change {dict(job.change)!r} given without resume; a new run takes the settings themselves"
            )
        return job
    folder = job.resume
    if not folder.exists():
        raise ArgumentError(
            f"resume {str(folder)!r}: there is no such folder; hogwild runs lists the runs that are there"
        )
    if not (folder / "config.toml").exists():
        raise ArgumentError(f"resume {str(folder)!r} is not the folder of a run: there is no config.toml in it")
    saved = RunConfig.load(folder / "config.toml")
    _refuse_edited(job, saved, folder)
    _refuse_other_settings(job, saved)
    every, wanted = peek(folder).digest_every, job.config.digest_every
    if every and wanted not in (None, every) and not (job.goes_on and has_ended(folder)):
        raise ArgumentError(
            f"digest_every {wanted} given, and the run in {folder} notes digests every {every} updates; "
            f"a resumed run needs the same"
        )
    # The file of the record stays: a change of it is warned of, and stands in origin.json.
    job = replace(job, config=replace(job.config, changes=saved.changes, own=saved.own))
    return _changed(job, folder, job.change) if job.change else job


def _held_to(job: Job) -> tuple[str, ...]:
    """The settings that the run must share with the one that it goes on with."""
    judged = job.callbacks.may_stop or job.config.keep_best is not None
    return (*DECIDE_BITS, *(OF_THE_JUDGED if judged else ()))


def _refuse_edited(job: Job, saved: RunConfig, folder: Path) -> None:
    """Refuse to go on where config.toml says another setting than the run was begun with, as after an edit."""
    origin = read_origin(folder)
    begun = (origin.settings if origin is not None else None) or {}
    held = _held_to(job)
    for name, value in begun_with(saved).items():
        if name in held and (was := begun.get(name, value)) != value:
            other = f", and change it by change={{{name!r}: {value!r}}} (--set {name}={_typed(value)})"
            raise ArgumentError(
                f"{folder / 'config.toml'} has {name} {value!r}, and the run was begun with {printable(repr(was))}; "
                f"put that back{other if name in CHANGEABLE else ''}"
            )


def _refuse_other_settings(job: Job, saved: RunConfig) -> None:
    """Refuse to go on with a run that was made with another setting that it is held to."""
    for name in _held_to(job):
        if differ(getattr(saved, name), getattr(job.config, name)):
            value, was = getattr(job.config, name), getattr(saved, name)
            other = "a resumed run needs the same"
            if name == "keep_best":
                other += "; with another one it begins anew, by overwrite=True (--overwrite) without resume"
            if _may_become(name, was, value):
                other += f", and change={{{name!r}: {value!r}}} beside it (--set {name}={_typed(value)})"
                if job.resume is not None and _has_no_checkpoint(job.resume):
                    other = f"it left no checkpoint to go on from with another {name} {_KEPT}"
            if name in _LENGTHS and was is not None and value is not None and value < was:
                other = f"{_NOT_SHORTER}, so a resumed run needs the same"
            raise ArgumentError(f"{name} is {value!r}, and the run in {job.resume} was made with {was!r}; {other}")
    before, now = (one.own.parameters if one.own is not None else {} for one in (saved, job.config))
    for name in {**before, **now}:
        if differ(before.get(name), now.get(name)):
            raise ArgumentError(
                f"{name} is {now.get(name)!r}, and the run in {job.resume} was made with {before.get(name)!r}; a "
                f"resumed run needs the same"
            )


def _may_become(name: str, was: Any, value: Any) -> bool:
    """True where a run that was made with one value can go on with the other."""
    if name not in _LENGTHS or (name == _LIMIT and value is None):
        return name in CHANGEABLE
    return was is not None and value is not None and value > was


def _has_no_checkpoint(folder: Path) -> bool:
    """Whether there is nothing to go on from, also not where whoever saved it was killed before it was moved."""
    return not any((place / CHECKPOINT).is_file() for place in (folder, folder / SAVED))


def _typed(value: Any) -> str:
    """A value as `--set` takes it."""
    return "none" if value is None else str(value)


def _changed(job: Job, folder: Path, values: Mapping[str, Any]) -> Job:
    for name in values:
        refuse_fixed(name)
    values = {name: of_python(value) for name, value in values.items()}
    if _has_no_checkpoint(folder):
        raise RunDirectoryError(
            f"the run in {folder} left no checkpoint to go on from with {', '.join(values)} {_KEPT}"
        )
    if job.goes_on and has_ended(folder):
        raise ArgumentError(
            f"the run in {folder} has ended, and its record stays as it is; name another folder (out, --out) for one "
            f"that goes on from its last checkpoint with {', '.join(values)}"
        )
    following, rule = peek(folder).following, job.rule
    changed = replace(job, change=values, config=job.config.changed(values, following // rule.tickets_per_update))
    lengths = ", ".join(name for name in values if name in _LENGTHS)
    if changed.batches > job.batches < following * rule.batches_per_ticket:
        raise ArgumentError(
            f"{lengths} given, and the last update of the run in {folder} has fewer batches than the others, "
            f"which a longer run's would not have"
        )
    if changed.batches < job.batches:
        raise ArgumentError(f"{lengths} makes {changed.batches} of {job.batches} batches, and {_NOT_SHORTER}")
    return changed
