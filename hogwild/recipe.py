"""From an experiment and its settings to a run: what `run`, `check` and `replay` share.

name or config.toml → find → settle (flags over saved settings over the experiment's over RunConfig's) → prepare
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hogwild import experiment
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.experiment import Experiment, Problem, Training
from hogwild.optimizer import Factory
from hogwild.rules import make_rule
from hogwild.run import Progress
from hogwild.schedule import as_source
from hogwild.session import Job, Session
from hogwild.workers.loop import train_loop
from hogwild.workers.processes import start_server


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer that has a name on the command line: a class of torch.optim, its options, its learning rate."""

    cls: str
    lr: float
    options: Mapping[str, Any] = field(default_factory=dict)


OPTIMIZERS: Mapping[str, NamedOptimizer] = {
    "sgd": NamedOptimizer("SGD", 0.1),
    "momentum": NamedOptimizer("SGD", 0.01, {"momentum": 0.9}),
    "adam": NamedOptimizer("Adam", 0.001),
    "adamw": NamedOptimizer("AdamW", 0.001),
    "adagrad": NamedOptimizer("Adagrad", 0.01),
    "rmsprop": NamedOptimizer("RMSprop", 0.001),
    "adafactor": NamedOptimizer("Adafactor", 0.01),
}


def optimizer_of(config: RunConfig) -> Factory:
    """The factory of the optimizer that a settled configuration names.

    Raises:
        ArgumentError: no optimizer has that name, or this version of torch does not have it.
    """
    named = _named(config.optimizer)
    cls = getattr(torch.optim, named.cls, None)
    if cls is None:
        raise ArgumentError(f"optimizer {config.optimizer!r} is not in torch {torch.__version__}; 2.13 has it")
    return partial(cls, lr=config.lr, **named.options)


def _named(name: str) -> NamedOptimizer:
    if name not in OPTIMIZERS:
        raise ArgumentError(f"optimizer {name!r} is not known; {', '.join(OPTIMIZERS)} are")
    return OPTIMIZERS[name]


def find(name_or_path: str) -> tuple[Experiment, RunConfig | None]:
    """An experiment by its name, or the one that a configuration file names, with the settings in that file.

    Raises:
        ArgumentError: no such experiment, no such file, or not the settings of a run.
    """
    path = Path(name_or_path)
    is_path = path.suffix == ".toml" or os.sep in name_or_path or path.is_dir()
    if name_or_path in experiment.names() or not is_path:
        return experiment.load(name_or_path), None
    config = RunConfig.load(path / "config.toml" if path.is_dir() else path)
    return experiment.load(config.name), config


def settle(training: Training, given: Mapping[str, Any], saved: RunConfig | None = None) -> RunConfig:
    """All settings of a run: those given, over those of an earlier run, over the experiment's, over RunConfig's.

    Raises:
        ArgumentError: a value that cannot work.
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
    values.setdefault("lr", _named(values["optimizer"]).lr)
    return RunConfig.from_mapping(values)


def build(training: Training, config: RunConfig, data: Path | None) -> Problem:
    """What the training trains; while it is made, the fork server imports torch.

    Raises:
        ArgumentError: the data is not where it should be, or not what it should be.
    """
    if config.kind == "processes":
        start_server()
    return training.build(config.seed, data)


def prepare(
    config: RunConfig,
    problem: Problem,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Session:
    """A run that only has to be started: `prepare(...).run()`.

    Raises:
        ArgumentError: settings and problem do not fit together.
        NotReproducible: the training draws from a generator that the workers of this kind share.
    """
    began = time.monotonic()
    rule = make_rule(
        config.update, staleness=config.staleness, micro_batches=config.micro_batches, gradient=config.gradient
    )
    rule.check(config.workers)
    job = Job(
        config=config,
        rule=rule,
        model=problem.model,
        optimizer=optimizer_of(config),
        source=as_source(
            problem.data,
            batch_size=config.batch_size,
            shuffle=config.shuffle,
            seed=config.seed,
            collate=None,
        ),
        loss=problem.loss,
        work=train_loop,
        lr_schedule=None,
        evaluate=problem.evaluate,
        stop=None,
        progress=progress,
        out=out,
        resume=resume,
    )
    return Session(job, began)


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
        raise ArgumentError(f"out {str(wanted)!r} cannot be made a folder: {error.strerror}") from error
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
