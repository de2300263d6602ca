"""From a name and some flags to the settings of a run, and to the folder it is saved in.

name or config.toml → find → settle (flags over saved settings over the experiment's over RunConfig's) → RunConfig
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hogwild import experiment
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.experiment import Experiment, Training, optimizer_named
from hogwild.rules import NAMES

LEARNING_RATES: Mapping[str, float] = {
    "sgd": 0.1,
    "momentum": 0.01,
    "adam": 0.001,
    "adamw": 0.001,
    "adagrad": 0.01,
    "rmsprop": 0.001,
    "adafactor": 0.01,
}
"""What an optimizer begins with where neither the experiment nor a flag says otherwise."""


def find(name_or_path: str) -> tuple[Experiment, RunConfig | None]:
    """An experiment by its name, or the one that a configuration file names, with the settings in that file.

    Raises:
        ArgumentError: no such experiment, no such file, or not the settings of a run.
    """
    path = Path(name_or_path)
    is_path = path.suffix == ".toml" or os.sep in name_or_path or path.is_dir()
    if name_or_path in experiment.names() or not is_path:
        return experiment.load(name_or_path), None
    if not path.exists():
        raise ArgumentError(f"{path}: No such file; give the name of an experiment, or the config.toml of a run")
    config = RunConfig.load(path / "config.toml" if path.is_dir() else path)
    return experiment.load(config.name), config


def settle(training: Training, given: Mapping[str, Any], saved: RunConfig | None = None) -> RunConfig:
    """All settings of a run: those given, over those of an earlier run, over the experiment's, over RunConfig's.

    Raises:
        ArgumentError: a value that cannot work, or an optimizer that nobody knows.
    """
    base = asdict(saved) if saved is not None else {**training.defaults, "name": training.name}
    base = {key: value for key, value in base.items() if value is not None}
    for one, other in (("epochs", "updates"), ("updates", "epochs")):
        if one in given:
            base.pop(other, None)
    base.setdefault("optimizer", "sgd")
    if given.get("optimizer", base["optimizer"]) != base["optimizer"]:
        base.pop("lr", None)  # it suited the other optimizer
    values = {**base, **given}
    _refuse_idle(given, values.get("update", RunConfig.update))
    optimizer_named(values["optimizer"], None)
    values.setdefault("lr", LEARNING_RATES[values["optimizer"]])
    return RunConfig.from_mapping(values)


def _refuse_idle(given: Mapping[str, Any], update: str) -> None:
    """A setting that its rule does not have was surely meant to do something."""
    for name, rule in (("staleness", "ordered"), ("micro_batches", "sync")):
        if name in given and update in NAMES and update != rule:
            raise ArgumentError(
                f"{name} {given[name]} given, and update is {update!r}; only {rule!r} has it (--update {rule})"
            )


@contextmanager
def directory(name: str, out: Path | None = None) -> Iterator[Path]:
    """The folder that a run is saved in: `out`, or a new one, runs/<name>-<time>, that no other run has.

    What is still empty when the block is left, for whatever reason, is removed.

    Raises:
        ArgumentError: the folder cannot be made.
    """
    wanted = out if out is not None else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    ours = [parent for parent in wanted.parents if not parent.exists()]
    kept = out is not None and out.exists()
    try:
        made = _made(wanted, fresh=out is None)
    except OSError as error:
        why = f"out {str(wanted)!r} cannot be made a folder ({error.strerror}); name another one"
        raise ArgumentError(why) from error
    try:
        if not os.access(made, os.W_OK):
            raise ArgumentError(f"out {str(made)!r} is a folder that cannot be written to; name another one")
        yield made
    finally:
        for folder in ours if kept else (made, *ours):
            with suppress(OSError):  # it is not empty, or somebody else removed it
                folder.rmdir()


def _made(wanted: Path, *, fresh: bool) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(exist_ok=not fresh)
        except FileExistsError:
            if not fresh:
                raise
            number += 1
        else:
            return path
