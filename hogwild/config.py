"""RunConfig: every setting of a run that is a plain value; frozen, validated, to and from TOML.

It is the one list of settings. The docstring under a field is the help text of its flag, and what the field's
`setting` says is what is checked, and shown beside the flag.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from hogwild.errors import ArgumentError, a_type, guess, printable
from hogwild.groups import Group, groups_in
from hogwild.own_code import OwnCode, own_code_in

KINDS = ("threads", "processes")
AUTO = "auto"  # the kind that leaves the choice to the run
_CREWS = {AUTO: ("worker", "workers"), "threads": ("thread", "threads"), "processes": ("process", "processes")}
COMPENSATIONS = ("none", "auto", "workers")
OF_OLD_FILES = {"compensation": "none"}
"""What a file means that is from before there was the setting."""
GRADIENTS = ("backward", "grad")
ON_NONFINITE = ("raise", "skip", "ignore")
ON_WORKER_FAILURE = ("replace", "continue", "raise")
_FORMS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
MAX_CONFIG_BYTES = 1 << 20
_LENGTHS = ("epochs", "updates")  # one of them says how long a run is
_TABLES = ("changes", "own", "groups")  # fields that are no plain values, and are checked by themselves
_BATCHES = "the batches that it has seen would have been others"
_VERSIONS = "a checkpoint holds as many versions as it needs"
_WAY = "a run takes all its gradients in one way"
_BEST = "how good the versions before were by another metric is not known"
_STATE = "a checkpoint holds the state of one optimizer"
_SHARES = "what machines average hangs on how they did before"
_MAX_LINE = 500  # characters of a file's own that an error message repeats


def setting(
    default: Any,
    metavar: str = "",
    *,
    least: int | None = None,
    most: int | None = None,
    positive: bool = False,
    choices: tuple[str, ...] = (),
    unset: str | None = None,
    decides_bits: bool = False,
    fixed: str = "",
    watches: bool = False,
) -> Any:
    """A field of `RunConfig`.

    Args:
        default: its value where nobody says otherwise.
        metavar: what stands for its value in a help text.
        least, most: the smallest and the largest value of a whole number.
        positive: the number must be above 0.
        choices: the texts that it may be.
        unset: what happens where it is not given, in a few words; None where that is the default.
        decides_bits: a run that is resumed with another value would end in other bits than the run that was stopped.
        fixed: why it cannot be changed on purpose either; empty where it can.
        watches: it changes nothing of what is trained, so that runs which differ in it alone are of the same settings.
    """
    known = {"metavar": metavar, "least": least, "most": most, "positive": positive, "choices": choices}
    return field(
        default=default,
        metadata={**known, "unset": unset, "decides_bits": decides_bits, "fixed": fixed, "watches": watches},
    )


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run.

    Raises:
        ArgumentError: a value that cannot work; the message names it, the rule it broke, and what would work.
    """

    name: str = setting("run", "NAME")
    """What the run is called: the experiment's name, where it has one."""
    update: str = setting("hogwild", "RULE", decides_bits=True, fixed="its journal and its versions are of one rule")
    """The rule: how a gradient is computed and reaches the shared model."""
    workers: int = setting(2, "N", least=1, most=4096)
    """Workers that train one model at once. More than the machine has cores does not help."""
    kind: str = setting(AUTO, choices=(AUTO, *KINDS))
    """What a worker is. auto: threads where the GIL is off or a step is long, and they share nothing random;
    else processes."""
    staleness: int = setting(1, "T", least=0, most=65_000, decides_bits=True, fixed=_VERSIONS)
    """A gradient is computed on the model of T updates ago. Allows T + 1 workers; 0 is serial training."""
    compensation: str = setting("auto", choices=COMPENSATIONS, decides_bits=True, fixed=_STATE)
    """What is done about staleness: auto, under ordered, stretches the momentum and steps for the updates that a
    gradient missed; workers does so under hogwild, locked and snapshot, for gradients workers - 1 updates old."""
    micro_batches: int = setting(2, "M", least=1, most=65_000, decides_bits=True, fixed=_BATCHES)
    """The batches that are averaged into one update. Allows M workers."""
    accumulate: int = setting(1, "N", least=1, most=65_000, decides_bits=True, fixed=_BATCHES)
    """Average the gradients of N batches into one, one after the other; memory holds one gradient more."""
    gradient: str | None = setting(None, choices=GRADIENTS, unset="the rule's", decides_bits=True, fixed=_WAY)
    """Take gradients by loss.backward() or by torch.autograd.grad()."""
    average_every: int | None = setting(None, "N", least=1, unset="", decides_bits=True, fixed=_SHARES)
    """Of several machines, let each train by itself on its share of the batches, and average every N updates."""
    outer_lr: float | None = setting(None, "RATE", positive=True, unset="", decides_bits=True, fixed=_SHARES)
    """Step by what an average moves the model, at this rate (DiLoCo: 0.7) and with Nesterov's momentum ..."""
    outer_momentum: float | None = setting(None, "M", least=0, unset="0.9", decides_bits=True, fixed=_SHARES)
    """... of this size."""
    optimizer: str = setting("", "NAME", unset="the experiment's", decides_bits=True, fixed=_STATE)
    """sgd, momentum (SGD with momentum 0.9), adam, adamw, adagrad, rmsprop or adafactor."""
    lr: float | None = setting(None, "RATE", positive=True, unset="the experiment's", decides_bits=True)
    """The learning rate."""
    epochs: int | None = setting(None, "N", least=1, unset="the experiment's", decides_bits=True)
    """Train for so many passes over the data ..."""
    updates: int | None = setting(None, "N", least=1, unset="", decides_bits=True)
    """... or for so many updates of the model."""
    limit_updates: int | None = setting(None, "N", least=1, unset="no limit", decides_bits=True)
    """End after N updates at most, whatever the length: to try out whether everything works."""
    batch_size: int = setting(64, "N", least=1, unset="the experiment's", decides_bits=True, fixed=_BATCHES)
    """Samples in a batch; the last of an epoch has what is left."""
    drop_last: bool = setting(False, decides_bits=True, fixed=_BATCHES)
    """Leave out the last batch of an epoch where it is not a whole one."""
    shuffle: bool = setting(True, decides_bits=True, fixed=_BATCHES)
    """Visit the samples in a new order every epoch."""
    seed: int = setting(0, "N", least=0, decides_bits=True, fixed=_BATCHES)
    """Decides the initial model of an experiment, the order of the samples, and what updates draw."""
    data: str | None = setting(None, "FOLDER", unset="", decides_bits=True, fixed=_BATCHES)
    """Folder of the data, for experiments that do not bring their own."""
    clip_grad_norm: float | None = setting(None, "NORM", positive=True, unset="no clipping", decides_bits=True)
    """Clip each update's gradient to this norm."""
    ema: float | None = setting(None, "DECAY", positive=True, unset="none", decides_bits=True, fixed=_STATE)
    """Keep a moving average of the weights too, e = DECAY e + (1 - DECAY) w after each update."""
    evaluate_every: int | None = setting(None, "N", least=1, unset="once an epoch")
    """Evaluate every N updates."""
    keep_best: str | None = setting(None, "METRIC", unset="", decides_bits=True, fixed=_BEST, watches=True)
    """Keep the version with the best METRIC of evaluate: losses and errors from the lowest, others from the highest;
    METRIC:min or METRIC:max says it otherwise."""
    patience: int | None = setting(None, "N", least=1, unset="never", decides_bits=True, fixed=_BEST)
    """End the run once the metric of keep_best has not improved for N evaluations."""
    checkpoint_every: int | None = setting(None, "N", least=1, unset="", watches=True)
    """Save a checkpoint every N updates, in case the run is killed; Ctrl-C saves one by itself."""
    digest_every: int | None = setting(None, "N", least=1, unset="at most about a hundred times in a run", watches=True)
    """Note the bits of every N-th version, for replay."""
    audit: bool = setting(False)
    """Measure what share of the computed gradient was applied (sgd only; costs time and memory)."""
    tensorboard: bool = setting(False, watches=True)
    """Write event files for TensorBoard into the run's folder."""
    recheck: float = setting(0.005, "SHARE", least=0, most=1)
    """The share of gradients that are computed twice and compared, where a rule promises the same bits; 0 is none."""
    on_nonfinite: str = setting("raise", choices=ON_NONFINITE, decides_bits=True)
    """What to do with a loss or gradient that is not finite; skip leaves the update out."""
    on_worker_failure: str = setting("replace", choices=ON_WORKER_FAILURE)
    """What to do when a worker raises, dies or hangs; continue goes on without it."""
    max_restarts: int = setting(3, "N", least=0)
    """Workers to replace before giving up."""
    worker_timeout: float | None = setting(None, "SECONDS", positive=True, unset="never")
    """Seconds after which a worker that gets no further is taken to hang."""
    changes: tuple[Change, ...] = ()
    """What was changed on purpose when the run was resumed, in the order of the updates."""
    groups: tuple[Group, ...] = setting((), decides_bits=True, fixed=_STATE)
    """Give parameters whose names match a pattern (*.bias) options of their own, as weight_decay=0 lr=0.01."""
    own: OwnCode | None = None
    """The file of one's own that the experiment stands in, and the values of its own parameters."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name not in _TABLES:
                object.__setattr__(self, one.name, of_python(getattr(self, one.name)))
                _check(one, getattr(self, one.name))
        _check_changes(self.changes)
        object.__setattr__(self, "groups", _groups_in(self.groups))
        if (self.epochs is None) == (self.updates is None):
            given = "neither" if self.epochs is None else "both"
            raise ArgumentError(f"{given} of epochs and updates given; exactly one says how long to train")
        if self.seed >= 1 << 63:
            raise ArgumentError(f"seed {self.seed} is not below 2^63; any number from 0 to 2^63 - 1 works")
        if self.ema is not None and self.ema >= 1:
            raise ArgumentError(f"ema {self.ema} is not below 1; 0.999 averages about the last thousand updates")
        if self.outer_momentum is not None and (self.outer_lr is None or self.outer_momentum >= 1):
            raise ArgumentError(
                f"outer_momentum {self.outer_momentum} given, which is for outer_lr, and below 1; 0.9 beside 0.7 works"
            )
        if self.outer_lr is not None and self.average_every is None:
            raise ArgumentError(f"outer_lr {self.outer_lr} given without average_every; 50 updates are a good start")
        if self.patience is not None and self.keep_best is None:
            raise ArgumentError(
                f"patience {self.patience} given without keep_best, the metric that it waits for; keep_best='accuracy' "
                f"names one"
            )
        if float("inf") in (self.lr, *(value for _, value in self.values_of("lr"))):
            raise ArgumentError("lr inf is not finite; 0.1 is a common choice for SGD, 0.001 for Adam")

    def at(self, name: str, update: int) -> Any:
        """The value of a setting at that update."""
        found = [change.value for change in self.changes if change.name == name and change.update <= update]
        return found[-1] if found else getattr(self, name)

    def values_of(self, name: str) -> tuple[tuple[int, Any], ...]:
        """The values that a setting was changed to, each with the update that it holds from."""
        return tuple((change.update, change.value) for change in self.changes if change.name == name)

    def changed(self, values: Mapping[str, Any], update: int) -> RunConfig:
        """These settings with others from that update on. How long the run is, is known by its last value alone.

        Raises:
            ArgumentError: a value that cannot work, or a setting that cannot be changed.
        """
        changes = tuple(Change(update, name, value) for name, value in values.items())
        kept = tuple(change for change in self.changes if change.update < update or change.name not in values)
        lengths: dict[str, Any] = dict.fromkeys(_LENGTHS) if any(name in values for name in _LENGTHS) else {}
        lengths |= {name: values[name] for name in (*_LENGTHS, "limit_updates") if name in values}
        return replace(self, changes=(*kept, *changes), **lengths)

    @property
    def whole_epochs(self) -> int | None:
        """How many epochs the run is; None where it ends after so many updates."""
        return self.epochs if self.limit_updates is None else None

    def crew(self, chosen: str = "") -> str:
        """Who trains: so many threads or processes; `chosen`: which, where the settings leave it open."""
        one, many = _CREWS[chosen or self.kind]
        told = f"1 {one}" if self.workers == 1 else f"{self.workers} {many}"
        return f"{told} ({AUTO})" if chosen and self.kind == AUTO else told

    def to_toml(self, run: str = "") -> str:
        """The settings as TOML; those that are None are left out. `run` is the identity of the run they are of."""
        own = {"run": run} if run else {}
        values = _without_none(asdict(self))
        if self.own is not None:
            values["own"] = {key: value for key, value in values["own"].items() if value != ""}
        values["groups"] = [group.to_mapping() for group in self.groups]
        values = {key: value for key, value in values.items() if value or key not in ("changes", "groups")}
        return tomli_w.dumps({**own, **values})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """The settings in a mapping, each of its field's type.

        Raises:
            ArgumentError: a key that no setting has, or a value of another type.
        """
        known = [one.name for one in fields(cls)]
        for key in values:
            if key not in known:
                raise ArgumentError(f"{key!r} is not a setting; the settings are {', '.join(known)}")
        tables = {"changes": _changes_in(values.get("changes", ())), "own": _own_in(values.get("own"))}
        return cls(**{**values, **tables})

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
        values.pop("run", None)  # the identity of the run that wrote it
        try:
            return cls.from_mapping({**OF_OLD_FILES, **values})
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {printable(str(error), _MAX_LINE)}") from error


@dataclass(frozen=True)
class Change:
    """A setting of a run that was changed on purpose when it was resumed; `value` holds from that update on."""

    update: int
    name: str
    value: Any = None

    def __str__(self) -> str:
        value = "none" if self.value is None else self.value
        return f"{self.name} {value} from update {self.update}"


DECIDE_BITS = tuple(one.name for one in fields(RunConfig) if one.metadata.get("decides_bits"))
"""The settings that a resumed run must share with the run it goes on with."""
CHANGEABLE = tuple(
    one.name for one in fields(RunConfig) if one.metadata.get("decides_bits") and not one.metadata["fixed"]
)
"""Those of them that may be changed on purpose."""


def refuse_fixed(name: str) -> None:
    """Refuse to change a setting in the middle of a run.

    Raises:
        ArgumentError: it cannot be; the message says why, and what can.
    """
    if name in CHANGEABLE:
        return
    known = {one.name: one for one in fields(RunConfig)}
    why = known[name].metadata.get("fixed") if name in known else "it is no setting"
    raise ArgumentError(
        f"{name} cannot be changed in a run ({why or 'it decides no bits, and is given by itself'}); "
        f"{', '.join(CHANGEABLE)} can"
    )


def of_python(value: Any) -> Any:
    """A value, and not a scalar of numpy."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _changes_in(values: Any) -> tuple[Change, ...]:
    """Changes as a file has them."""
    try:
        return tuple(one if isinstance(one, Change) else Change(**one) for one in values)
    except TypeError:
        raise ArgumentError(f"changes {values!r} is not a list of an update, a name and a value each") from None


def _groups_in(values: Any) -> tuple[Group, ...]:
    """Groups as a file has them."""
    try:
        return groups_in(values)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"groups: {error}") from None


def _own_in(value: Any) -> OwnCode | None:
    """Somebody's own code as a file has it."""
    try:
        return own_code_in(value)
    except TypeError:
        raise ArgumentError(
            f"own {value!r} is not a file of one's own; it has the absolute path of a file, a sha256 and parameters"
        ) from None


def _without_none(value: Any) -> Any:
    """A value without the parts of it that are None, which TOML does not have."""
    if isinstance(value, Mapping):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_none(one) for one in value]
    return value


def _check_changes(changes: Any) -> None:
    """Refuse what are no changes of a run, in the order of the updates."""
    if not isinstance(changes, tuple) or not all(isinstance(one, Change) for one in changes):
        raise ArgumentError(f"changes {changes!r} is {a_type(changes)}; it must be a tuple of changes")
    known, last = {one.name: one for one in fields(RunConfig)}, 0
    for change in changes:
        if not _is_of(change.update, "int") or change.update < last:
            raise ArgumentError(f"changes: update {change.update!r} is not a whole number that is {last} or more")
        if not isinstance(change.name, str):
            raise ArgumentError(f"changes: name {change.name!r} is {a_type(change.name)}; it must be text")
        refuse_fixed(change.name)
        if change.name == "lr" and change.value is None:
            raise ArgumentError("lr none is not a learning rate; 0.1 is a common one for SGD")
        _check(known[change.name], change.value)
        last = change.update


def _check(one: Field[Any], value: Any) -> None:
    """Refuse a value that this field cannot have."""
    wanted = str(one.type)
    if value is None and wanted.endswith("| None"):
        return
    form = wanted.split(" | ")[0]
    if not _is_of(value, form):
        raise ArgumentError(f"{one.name} {value!r} is {a_type(value)}; it must be {_FORMS[form]}")
    if form == "str" and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ArgumentError(f"{one.name} {value!r} has halves of letters, which no file can hold")
    limits = one.metadata
    if limits["choices"] and value not in limits["choices"]:
        known = ", ".join(map(repr, limits["choices"]))
        raise ArgumentError(f"{one.name} {value!r} is not known; {guess(value, limits['choices'])}{known} are")
    if limits["least"] is not None and value < limits["least"]:
        raise ArgumentError(f"{one.name} {value} is below {limits['least']}; {limits['least']} or more works")
    if limits["most"] is not None and value > limits["most"]:
        raise ArgumentError(f"{one.name} {value} is over {limits['most']}; {limits['most']} or fewer work")
    if limits["positive"] and not value > 0:
        raise ArgumentError(f"{one.name} {value!r} is not above 0; a positive number works")
    if value != value:
        raise ArgumentError(f"{one.name} {value!r} is no number; it must be {_FORMS[form]}")


def _is_of(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "bool"
    if isinstance(value, int):
        return wanted in ("int", "float")
    return type(value).__name__ == wanted
