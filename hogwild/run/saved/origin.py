"""origin.json: which run this is, what it trains, and where. Written when a run begins, kept when it is resumed.

Everything that decides bits and is no setting of `RunConfig` is described here as plain values: the optimizer and its
groups, the learning-rate schedule at a few updates, the model (`hogwild.run.saved.structure`), the data by its first
batch. A resumed run must be of the same; what is told by name only (loss, collate) may have moved.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hogwild.config import RunConfig
from hogwild.data.sources import DatasetSource, TensorSource
from hogwild.errors import ArgumentError, RunDirectoryError, called_by, class_name, printable
from hogwild.kernels.kernel import Kernel
from hogwild.optim.compensation import real_changes
from hogwild.optim.rates import RateTable
from hogwild.optim.several import recorded_class
from hogwild.optim.stability import GROWS
from hogwild.rules.registry import is_ours
from hogwild.run.job import Job
from hogwild.run.saved.begun_with import begun_with
from hogwild.run.saved.directory import ORIGIN, RUN_FILES, file_digest, identity_in_config
from hogwild.run.saved.environment import environment
from hogwild.run.saved.metrics import finite_or_word, json_values
from hogwild.run.saved.structure import form_of_tensor, structure_differences, structure_of

_MAX_BYTES = 1 << 28
_FOREIGN = {  # makers of runs that the command line cannot build again, and how each is called
    "train": "hogwild.train(model, data, loss, optimizer=...{resume})",
    "train_kernel": "hogwild.train_kernel(model, kernel{resume})",
    "launch": "hogwild.launch(work, model, optimizer=...{resume})",
}
_REPLAYED = {
    "train": "call hogwild.replay({folder}, model=..., data=..., loss=..., optimizer=...)",
    "train_kernel": "call hogwild.replay({folder}, model=..., data=<the kernel>)",
    "launch": "launch it again, for a loop is not replayed, and compare both by hogwild compare",
}
_OF_A_KERNEL = "the kernel's lr × schedule"


@dataclass(frozen=True)
class Origin:
    """Where a run comes from.

    Attributes:
        run: its identity, 32 hexadecimal digits; empty for one that was begun by version 0.2.0.
        maker: what made it: "experiment", "train", "train_kernel" or "launch".
        training: what it trains.
        environment: where it was begun.
        curvature, curvature_grows: of the loss where it began, where it was measured, and what was left for it to grow
            to, times that (`hogwild.run.trial.curvature`).
        compensation: what was changed of the optimizer because gradients are stale, in words; None where not noted.
        resumed: for each time that it was gone on with: version, workers, kind and environment, and what was changed
            on purpose, and the SHA-256 of the file that the experiment stands in.
        settings: what it is held to of config.toml, as it last was begun or gone on with; None where not noted.
    """

    run: str
    maker: str
    training: Mapping[str, Any]
    environment: Mapping[str, Any]
    resumed: tuple[Mapping[str, Any], ...] = field(default=())
    curvature: float | None = None
    curvature_grows: int = GROWS
    compensation: Sequence[str] | None = None
    settings: Mapping[str, Any] | None = None

    @classmethod
    def new(cls, job: Job, training: Mapping[str, Any]) -> Origin:
        """That of a run that begins here and now."""
        return cls(uuid.uuid4().hex, job.maker, training, environment(), settings=begun_with(job.config))

    def gone_on(self, version: int, config: RunConfig, kind: str, change: Mapping[str, Any]) -> Origin:
        """The same, gone on with from that version here and now by that kind of worker, some settings changed."""
        part: dict[str, Any] = {
            "version": version,
            "workers": config.workers,
            "kind": kind,
            "environment": environment(),
        }
        if change:
            part["change"] = dict(change)
        if config.own is not None:
            part["sha256"] = file_digest(Path(config.own.file))
        return replace(self, resumed=(*self.resumed, part), settings=begun_with(config))

    def to_json(self) -> str:
        """What origin.json holds."""
        return json.dumps(json_values(asdict(self), finite_or_word), indent=2, allow_nan=False) + "\n"

    @property
    def made_by_command(self) -> bool:
        """False where only the Python program that made it can build it again."""
        return self.maker not in _FOREIGN

    @property
    def optimizer(self) -> str | None:
        """The class of its optimizer, or of each of several; None where none is recorded, or a kernel steps."""
        found = None if self.of_a_kernel else self._part("optimizer").get("class")
        names = [name.rpartition(".")[2] for name in found.split(" + ")] if isinstance(found, str) else []
        return printable(" + ".join(dict.fromkeys(names))) if names else None

    @property
    def lr(self) -> float | None:
        """The learning rate of the optimizer's first group, or of a kernel at first; None where it is not recorded."""
        name, part, key = ("lr_schedule", "factors", "0") if self.of_a_kernel else ("optimizer", "groups", "lr")
        found = self._part(name).get(part)
        first = found[0] if isinstance(found, list) and found else found
        rate = first.get(key) if isinstance(first, Mapping) else None
        return rate if isinstance(rate, int | float) and not isinstance(rate, bool) and rate - rate == 0 else None

    @property
    def of_a_kernel(self) -> bool:
        """True where a kernel was trained: what is recorded as the optimizer adds up its differences."""
        return self._part("lr_schedule").get("name") == _OF_A_KERNEL

    def _part(self, name: str) -> Mapping[str, Any]:
        return found if isinstance(found := self.training.get(name), Mapping) else {}

    @property
    def starts(self) -> tuple[int, ...]:
        """The version from which it was gone on with, each time."""
        return tuple(int(part.get("version", 0)) for part in self.resumed)

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """Those of all its parts."""
        return [self.environment, *(part.get("environment", {}) for part in self.resumed)]


def read_origin(folder: Path) -> Origin | None:
    """The origin.json of a run directory; None where there is none.

    Raises:
        RunDirectoryError: it is something else.
    """
    path = folder / ORIGIN
    try:
        if not path.exists():
            return None
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise ValueError("it is no plain file, or too long")
        found = Origin(**json.loads(path.read_text(encoding="utf-8")))
        forms: dict[str, Any] = {"run": str, "maker": str, "training": dict, "environment": dict, "resumed": list}
        forms |= {
            "curvature": float | None,
            "curvature_grows": int,
            "compensation": list | None,
            "settings": dict | None,
        }
        wrong = [name for name, form in forms.items() if not isinstance(getattr(found, name), form)]
        if wrong or not all(map(_is_part, found.resumed)):
            raise ValueError(f"{', '.join(wrong) or 'resumed'} is malformed")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunDirectoryError(f"{path} does not say where a run comes from: {printable(str(error))}") from error
    return replace(found, resumed=tuple(found.resumed))


def _is_part(part: Any) -> bool:
    return isinstance(part.get("environment", {}), dict) and isinstance(part.get("version", 0), int)


def one_identity(folder: Path, **others: str) -> str:
    """The identity of the run in a folder; empty where it was begun by version 0.2.0.

    Args:
        folder: its directory.
        others: name of a further file, without its ending → the identity that it carries.

    Raises:
        RunDirectoryError: its files are not all of one run.
    """
    origin = read_origin(folder)
    run = origin.run if origin is not None else ""
    found = {"config.toml": identity_in_config(folder / "config.toml") or "", **others}
    for name, other in found.items():
        if other != run:
            raise RunDirectoryError(
                f"{folder / name} is of another run ({_short(other)}) than {folder / ORIGIN} ({_short(run)}); "
                f"put its own back, or begin the run again in another folder"
            )
    return run


def _short(run: str) -> str:
    return printable(run[:8]) or "without identity"


def refuse_made_by_python(
    folder: Path, nobody: Callable[[str], bool], *, resumed: bool = False, replayed: bool = False
) -> None:
    """Refuse a run that the command line cannot build again.

    Args:
        folder: its directory.
        nobody: name → True where no experiment has it; decides for what version 0.2.0 wrote.
        resumed: it was to be gone on with.
        replayed: it was to be computed again.

    Raises:
        ArgumentError: it was made by `hogwild.train`, `train_kernel` or `launch`; the message says what to call.
    """
    origin, path = read_origin(folder), folder / "config.toml"
    if origin is not None:
        maker = origin.maker
    else:
        config = RunConfig.load(path)
        trained = any((folder / name).exists() for name in RUN_FILES if name != path.name)
        maker = "train" if not config.optimizer and (trained or nobody(config.name)) else "experiment"
    if maker not in _FOREIGN:
        return
    named = repr(str(folder))
    resume = f", resume={named}, out={named}" if resumed else ""
    instead = _REPLAYED[maker].format(folder=named) if replayed else f"call {_FOREIGN[maker].format(resume=resume)}"
    raise ArgumentError(
        f"the run in {folder} was made by hogwild.{maker} from a Python program, which alone knows what was trained; "
        f"there {instead}"
    )


# --- what is trained


def describe(
    job: Job, optimizer: Optimizer, names: Mapping[int, str], trained: Collection[str], batch: str
) -> dict[str, Any]:
    """What a job trains, as JSON values.

    Args:
        job: the job.
        optimizer: made once by its factory.
        names: id of each parameter that the optimizer may hold → its name.
        trained: names of the parameters that are trained.
        batch: digest of batch 0.
    """
    groups = [_group(group, names) for group in optimizer.param_groups]
    return {
        "optimizer": {"class": recorded_class(optimizer), "groups": groups},
        "rule": None if is_ours(job.rule) else class_name(job.rule),  # which may have the name of one of ours
        "lr_schedule": _schedule(job),
        "model": structure_of(job.model, trained),
        "loss": name_of(job.source.step if isinstance(job.source, Kernel) else job.loss),
        "work": None if job.source is not None else name_of(job.work),
        "data": _data(job, batch),
        "config": dict(job.caller_config),
    }


def _group(group: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    options = {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
    return {**options, "params": [names.get(id(parameter), "") for parameter in group["params"]]}


def _schedule(job: Job) -> dict[str, Any]:
    """The schedule at its first, its last and some updates between: factors, or under a scheduler of torch the rate of
    each group; None where it raises there."""
    table, schedule, updates = job.lr_schedule, _factors(job), job.updates
    found: dict[str, Any] = {}
    for update in sorted({0, 1, 2, *(updates * i // 8 for i in range(8)), updates - 1} & set(range(updates))):
        found[str(update)] = None
        with suppress(Exception):
            found[str(update)] = 1.0 if schedule is None else finite_or_word(float(schedule(update)))
        if isinstance(table, RateTable):
            found[str(update)] = json_values(table.at(update), finite_or_word)
    name = table.name if isinstance(table, RateTable) else name_of(schedule)
    return {"name": _OF_A_KERNEL if isinstance(job.source, Kernel) else name, "factors": found}


def _factors(job: Job) -> Callable[[int], float] | None:
    """The factor on the learning rate at an update; of a kernel on that of the run, or else its rate."""
    kernel = job.source
    if not isinstance(kernel, Kernel):
        return job.factors
    per_update, lr = job.batches / job.updates, kernel.lr if job.config.lr is None else 1.0
    return lambda update: lr * kernel.schedule(update * per_update / job.planned_batches)


def _data(job: Job, batch: str) -> dict[str, Any] | None:
    source = job.source
    if source is None:
        return None
    samples = source.schedule.samples if isinstance(source, TensorSource | DatasetSource) else None
    given: Any = source
    if isinstance(source, Kernel):
        return {"name": name_of(source.draw), "samples": None, "collate": None, "first_batch": batch or None}
    if isinstance(source, TensorSource):
        given = source.data
    elif isinstance(source, DatasetSource):
        given = source.dataset
    collate = name_of(source.collate) if isinstance(source, DatasetSource) else None
    kept = (batch or None) if isinstance(source, TensorSource) or job.rule.same_bits else None  # others may draw
    return {"name": class_name(given), "samples": samples, "collate": collate, "first_batch": kept}


def name_of(function: Any) -> str | None:
    """Where a function or an object with `__call__` is defined; of a partial, the function in it."""
    function = called_by(function)
    if function is None:
        return None
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else class_name(function)


def _plain(value: Any) -> Any:
    """A value as JSON has it: a tensor of one value as that number, inf and nan as words, what else JSON has not by the
    name of its type."""
    if isinstance(value, Tensor):
        return json_values(value.item(), finite_or_word) if value.numel() == 1 else form_of_tensor(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float | int | str | None):
        return json_values(value, finite_or_word)
    return class_name(value)


# --- is it the same?


def refuse_other_training(recorded: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with a run that trained something else.

    Raises:
        RunDirectoryError: it trained another model.
        ArgumentError: it had another optimizer, schedule or data.
    """
    try:
        found = list(training_differences(recorded, now))
    except (TypeError, AttributeError, KeyError) as error:
        told = f"{folder / ORIGIN} does not say what a run trained: {printable(str(error))}"
        raise RunDirectoryError(told) from error
    for name, before, after in found:
        if name.startswith("model"):
            told = f"its {name[6:]} was {printable(str(before))} and is {printable(str(after))}"
            raise RunDirectoryError(f"{folder} is of a run with another model: {told}")
        raise ArgumentError(
            f"{name} is {after!r}, and the run in {folder} was made with {printable(repr(before))}; "
            f"a resumed run needs the same"
        )


def refuse_other_compensation(recorded: Sequence[str] | None, now: Sequence[str], folder: Path) -> None:
    """Refuse to go on with a run whose stale gradients were made up for otherwise.

    Raises:
        ArgumentError: what was recorded is not what is done now.
    """
    for before, after in compensation_differences(recorded, now):
        raise ArgumentError(
            f"the run in {folder} made up for stale gradients otherwise ({before}; now: {after}); it needs the hogwild "
            f"that began it, with compensation 'workers' as many workers, and no larger rate of its lr_schedule"
        )


def compensation_differences(recorded: Sequence[str] | None, now: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(the recorded words, the words now) where what makes up for stale gradients is not what was recorded."""
    if recorded is not None and real_changes(recorded) != real_changes(now):
        before, after = (printable("; ".join(map(str, one))) or "nothing" for one in (recorded, now))
        yield before, after


def training_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, the recorded value, the value now) for all that differs; keys that only one side knows are left out, but
    those of the model."""
    was = {name: part if isinstance(part := recorded.get(name), Mapping) else {} for name in now}
    found = structure_differences(was["model"], now["model"])
    yield from ((f"model {what}", before, after) for what, before, after in found)
    if "rule" in recorded and recorded["rule"] != now.get("rule"):
        yield "the class of the rule", recorded["rule"], now.get("rule")
    before, after = was["optimizer"], now["optimizer"]
    if before.get("class") != after["class"]:
        yield "optimizer", before.get("class"), after["class"]
    groups = [part if isinstance(part, Mapping) else {} for part in before.get("groups", ())]
    if len(groups) != len(after["groups"]):
        yield "the number of the optimizer's groups", len(groups), len(after["groups"])
    for number, (one, other) in enumerate(zip(groups, after["groups"], strict=False)):
        where = f" of the optimizer's group {number}" if len(groups) > 1 else ""
        yield from ((f"{key}{where}", one[key], other[key]) for key in other if key in one and one[key] != other[key])
    factors, schedule = was["lr_schedule"].get("factors", {}), now["lr_schedule"]
    for update, factor in schedule["factors"].items():
        if update in factors and factors[update] != factor:
            called = _OF_A_KERNEL if schedule["name"] == _OF_A_KERNEL else "lr_schedule"
            yield f"{called} at update {update}", factors[update], factor
    for key in ("samples", "first_batch"):
        before_value, value = was["data"].get(key), (now["data"] or {}).get(key)
        if before_value is not None and value is not None and before_value != value:
            yield f"data, its {key.replace('_', ' ')},", before_value, value
    then, today = recorded.get("nodes") or 0, now.get("nodes") or 0
    if then != today:
        yield "the number of machines that average", then, today
