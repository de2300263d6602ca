"""RunConfig: every setting of a run that is a plain value; frozen, validated, to and from TOML.

The docstring under each field is also the help text of its flag.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from hogwild.errors import ArgumentError, printable

KINDS = ("threads", "processes")
ON_NONFINITE = ("raise", "skip", "ignore")
ON_WORKER_FAILURE = ("replace", "continue", "raise")
_FORMS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
MAX_CONFIG_BYTES = 1 << 20
_MAX_LINE = 500  # characters of a file's own that an error message repeats
_MOST = {"workers": 4096, "staleness": 65_000, "micro_batches": 65_000}


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run.

    Raises:
        ArgumentError: a value that cannot work; the message names it, the rule it broke, and what would work.
    """

    name: str = "run"
    """What the run is called: the experiment's name, where it has one."""
    update: str = "hogwild"
    """How a gradient is computed and reaches the shared model: racing, hogwild, locked, snapshot, ordered or sync."""
    workers: int = 2
    """Workers that train at once."""
    kind: str = "processes"
    """What a worker is: threads or processes."""
    staleness: int = 1
    """ordered: update u computes its gradient on version u - staleness. Allows staleness + 1 workers; changes the
    result."""
    micro_batches: int = 2
    """sync: batches that are averaged into one update."""
    gradient: str | None = None
    """How gradients are computed: backward or grad. None is the rule's own way."""
    epochs: int | None = None
    """Passes over the data. Exactly one of epochs and updates is set."""
    updates: int | None = None
    """Updates to make."""
    batch_size: int = 64
    """Samples in a batch; the last of an epoch has what is left."""
    shuffle: bool = True
    """Visit the samples in a new order every epoch."""
    seed: int = 0
    """Decides the initial model of an experiment, the shuffles, and what each update draws."""
    optimizer: str = ""
    """The optimizer's name."""
    lr: float | None = None
    """The learning rate. None is the experiment's own."""
    data: str | None = None
    """A folder with the experiment's data, where it needs one."""
    clip_grad_norm: float | None = None
    """Clip each update's gradient to this norm."""
    evaluate_every: int | None = None
    """Evaluate every so many updates. None is once an epoch."""
    checkpoint_every: int | None = None
    """Save a checkpoint every so many updates. None is only when the run is interrupted."""
    digest_every: int | None = None
    """Note the bits of every so many versions, for replay. None is at most about a hundred times in a run,
    less often for large models."""
    audit: bool = False
    """Measure what share of the computed gradient was applied."""
    on_nonfinite: str = "raise"
    """What to do with a loss or gradient that is not finite: raise, skip (leave the update out) or ignore."""
    on_worker_failure: str = "replace"
    """What to do when a worker raises, dies or hangs: replace, continue (without it) or raise."""
    max_restarts: int = 3
    """Workers to replace before giving up."""
    worker_timeout: float | None = None
    """Seconds after which a worker that gets no further hangs. None is never."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choices()
        for name, least in (
            ("workers", 1),
            ("batch_size", 1),
            ("staleness", 0),
            ("micro_batches", 1),
            ("max_restarts", 0),
        ):
            _require_int(name, getattr(self, name), least)
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ArgumentError(f"{name} {getattr(self, name)} is over {most}; {most} or fewer work")
        for name in ("epochs", "updates", "evaluate_every", "checkpoint_every", "digest_every"):
            if getattr(self, name) is not None:
                _require_int(name, getattr(self, name), 1)
        if (self.epochs is None) == (self.updates is None):
            given = "neither" if self.epochs is None else "both"
            raise ArgumentError(f"{given} of epochs and updates given; exactly one says how long to train")
        _require_int("seed", self.seed, 0)
        if self.seed >= 1 << 63:
            raise ArgumentError(f"seed {self.seed} is not below 2^63; any number from 0 to 2^63 - 1 works")
        for name in ("clip_grad_norm", "worker_timeout", "lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"{name} {value!r} is not above 0; a positive number works")
        if self.lr is not None and self.lr == float("inf"):
            raise ArgumentError("lr inf is not finite; 0.1 is a common choice for SGD, 0.001 for Adam")

    def _check_types(self) -> None:
        for field in fields(self):
            value, wanted = getattr(self, field.name), str(field.type)
            if value is None and wanted.endswith("| None"):
                continue
            if not _is_of(value, wanted.split(" | ")[0]):
                form = _FORMS[wanted.split(" | ")[0]]
                raise ArgumentError(f"{field.name} {value!r} is a {type(value).__name__}; it must be {form}")

    def _check_choices(self) -> None:
        for name, choices in (
            ("kind", KINDS),
            ("on_nonfinite", ON_NONFINITE),
            ("on_worker_failure", ON_WORKER_FAILURE),
            ("gradient", (None, "backward", "grad")),
        ):
            value = getattr(self, name)
            if value not in choices:
                known = ", ".join(repr(choice) for choice in choices if choice is not None)
                raise ArgumentError(f"{name} {value!r} is not known; {known} are")

    @property
    def title(self) -> str:
        """What is run, on one line: name, rule, and who does it."""
        workers = f"{self.workers} {self.kind}"
        if self.workers == 1:
            workers = "1 thread" if self.kind == "threads" else "1 process"
        rule = self.update
        if rule == "ordered":
            rule += f", staleness {self.staleness}"
        elif rule == "sync":
            rule += f", {self.micro_batches} micro-batches"
        return f"{self.name} · {rule} · {workers}"

    def to_toml(self) -> str:
        """The settings as TOML; those that are None are left out."""
        return tomli_w.dumps({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """The settings in a mapping, each of its field's type.

        Raises:
            ArgumentError: a key that no setting has, or a value of another type.
        """
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ArgumentError(f"{key!r} is not a setting; the settings are {', '.join(known)}")
        return cls(**values)

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """The settings in a TOML file.

        Raises:
            ArgumentError: no such file, no TOML, or not the settings of a run.
        """
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
                raise ArgumentError(f"{path} is not a plain file")
            if path.stat().st_size > MAX_CONFIG_BYTES:
                raise ArgumentError(f"{path} is over {MAX_CONFIG_BYTES} bytes, and no configuration is that long")
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, ArgumentError):
                raise
            why = printable(str(error), _MAX_LINE)
            raise ArgumentError(f"{path} is not a configuration that can be read: {why}") from error
        try:
            return cls.from_mapping(values)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {printable(str(error), _MAX_LINE)}") from error


def _is_of(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "bool"
    if isinstance(value, int):
        return wanted in ("int", "float")
    return type(value).__name__ == wanted


def _require_int(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"{name} {value!r} is a {type(value).__name__}; it must be a whole number")
    if value < least:
        raise ArgumentError(f"{name} {value} is below {least}; {least} or more works")
