"""Run: the result of a training, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file

from hogwild.config import RunConfig
from hogwild.errors import RunDirectoryError, as_html, printable
from hogwild.rules.registry import title_of
from hogwild.run.audit import Audit
from hogwild.run.divergence import divergence, usual_loss
from hogwild.run.saved.best import Best, save_best
from hogwild.run.saved.directory import (
    AVERAGED,
    BEST,
    FORMAT,
    METRICS,
    ORIGIN,
    SEALED_FILES,
    clear_leftovers,
    file_digest,
    identity_in_config,
    keep,
    occupied,
    refuse_taken,
    remove_files,
)
from hogwild.run.saved.metrics import as_json, by_update, json_values, logged_in_order, metrics_in
from hogwild.run.saved.origin import Origin
from hogwild.run.state_dicts import beside_tensors, tensors_of
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.journal import Seal, losses_by_update

INTERRUPTED = "interrupted"  # what `stopped` says of a run that can be gone on with


@dataclass(frozen=True)
class Staleness:
    """How old the version that a gradient was computed on was when it was applied, in updates.

    Attributes:
        set: the staleness that was asked for, under `ordered`; None elsewhere.
        mean: over all updates.
        p99: the 99th percentile.
        max: the oldest.
    """

    set: int | None
    mean: float
    p99: float
    max: int

    @classmethod
    def of(cls, journal: NDArray[Any], wanted: int | None) -> Staleness:
        """From the rows of a journal."""
        if len(journal) == 0:
            return cls(wanted, 0.0, 0.0, 0)
        ages = journal["version"] - 1 - journal["version_read"]
        return cls(wanted, float(ages.mean()), float(np.percentile(ages, 99)), int(ages.max()))


@dataclass(frozen=True)
class WorkerUsage:
    """What one worker did and used.

    Attributes:
        worker: its number, from 0; of several machines, among the workers of all.
        computed: gradients, without those of `rechecked`.
        skipped: updates that it left out because their gradient was not finite.
        cpu_seconds: of processor time.
        waited_seconds: of waiting for other workers.
        rss: bytes of memory of its process; a thread has that of the whole program.
        pss: the same with shared pages divided among those who share them; None where it is not Linux.
        rechecked: gradients that it computed a second time, and found equal.
        node: the machine that it is of, from 0.
    """

    worker: int
    computed: int
    skipped: int
    cpu_seconds: float
    waited_seconds: float
    rss: int
    pss: int | None
    rechecked: int = 0
    node: int = 0


@dataclass(frozen=True)
class Run:
    """What a training came to.

    Attributes:
        config: its settings.
        state: the final state dict, in memory of its own: tensors, and what else `state_dict()` of the model gives.
        digest: of the final state.
        updates: applied to the model, this run's and those it resumed from.
        samples: trained on in this run; of one that was resumed, since then. Of a source of one's own every batch
            counts as large as the first, of a loop of one's own every ticket as one.
        seconds: from the first claim to the last commit, summed over the parts of a run that was resumed.
        startup_seconds: from the call of `train` to the first claim.
        journal: one row per update, in commit order; fields as in `hogwild.shared.journal.ROW`.
        seals: version → the bits of that version, every so many, for the rules that can be replayed.
        evaluations: one mapping per evaluation: `update`, `seconds` since the first claim, and the metrics.
        logged: what workers recorded by `worker_info().log(...)`, with `update`, `batch` and `worker`, in that order.
        workers: one `WorkerUsage` each; of a run that was resumed, what they did since then.
        staleness: how old the versions were that gradients were computed on.
        failures: for each worker that raised, died or hung, in order: one line, then its traceback or stacks, if any.
        in_doubt: updates that may have been applied in part, or not, because their worker ended while it wrote; or
            twice, because it wrote while the checkpoint was made that the run was resumed from. Both of all parts of a
            run that was resumed.
        stopped: why the run ended before its last update, if it did.
        audit: what share of the computed gradient was applied; None where none was made, or could be: plain SGD without
            clipping has one, unless a worker died and its account with it.
        out: directory it was saved in, if it was, as it was named; a relative path begins in the folder that was the
            current one when the run began.
        samples_before: those of the parts before it was resumed.
        seconds_before: those of the parts before it was resumed.
        origin: which run it is, what it trained and where; None where it was not saved, or by version 0.2.0.
        best: the version whose metric was best, where `keep_best` names one; None where no value was finite.
        ema_state: the state dict with the moving average of the trained parameters, in memory of its own; buffers and
            other parameters are those of `state`. None where `ema` was not set.
        kind: "threads" or "processes": what the workers were. `config.kind` is what was asked for.
        kind_because: why, where "auto" was asked for; else empty.
        updates_per_epoch: of a run of whole epochs; None of another, and of one whose record does not say.
        nodes: machines that trained together.
        in_tickets: its samples are tickets, because the loop was the caller's own and did not say how many it used.
    """

    config: RunConfig
    state: Mapping[str, Any]
    digest: str
    updates: int
    samples: int
    seconds: float
    startup_seconds: float
    journal: NDArray[Any]
    seals: Mapping[int, Seal]
    evaluations: tuple[Mapping[str, float], ...]
    logged: tuple[Mapping[str, float], ...]
    workers: tuple[WorkerUsage, ...]
    staleness: Staleness
    failures: tuple[str, ...] = ()
    in_doubt: tuple[int, ...] = ()
    stopped: str | None = None
    audit: Audit | None = None
    out: Path | None = field(default=None, compare=False)
    samples_before: int = 0
    seconds_before: float = 0.0
    compensation: tuple[str, ...] = ()
    curvature: float | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)
    best: Best | None = None
    ema_state: Mapping[str, Any] | None = field(default=None, repr=False)
    kind: str = ""
    kind_because: str = ""
    updates_per_epoch: int | None = None
    nodes: int = 1
    in_tickets: bool = False

    @property
    def samples_per_second(self) -> float:
        """Samples trained on per second of training, over all parts of the run."""
        return (self.samples_before + self.samples) / self.seconds if self.seconds > 0 else 0.0

    @property
    def unit(self) -> str:
        """What `samples` counts, in a word."""
        return "tickets" if self.in_tickets else "samples"

    @property
    def model_state(self) -> Mapping[str, Any]:
        """The final state dict: `state`, by the name that `load_state_dict` takes."""
        return self.state

    @property
    def ema_digest(self) -> str | None:
        """The digest of `ema_state`; None where there is none."""
        return digest_bytes(self.ema_state).hex() if self.ema_state is not None else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was trained, beside `config`, as it was recorded: optimizer and its groups, the schedule at a few
        updates, model, loss, data, and the caller's own `config`. Empty where nothing was recorded."""
        return self.origin.training if self.origin is not None else {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where it was begun: versions, processor, instruction sets, flags, revision, command. Empty where nothing was
        recorded."""
        return self.origin.environment if self.origin is not None else {}

    @property
    def rechecked(self) -> int:
        """Gradients that were computed twice, with equal bits; those of this part where the run was resumed."""
        return sum(usage.rechecked for usage in self.workers)

    @property
    def losses(self) -> NDArray[np.float64]:
        """The loss of every update's batch, in commit order."""
        return cast("NDArray[np.float64]", self.journal["loss"])

    @property
    def loss(self) -> float:
        """The mean loss of the last epoch's worth of updates, or of the last hundred where there are no epochs; of
        the losses that are finite, unless most are not."""
        return usual_loss(self.losses[-self._tail :])

    @property
    def diverged(self) -> str | None:
        """That the loss has risen above where it began, in words with the figures; None where it has not."""
        found = divergence(losses_by_update(self.journal))
        return str(found) if found is not None else None

    @property
    def _tail(self) -> int:
        epochs = self.config.whole_epochs
        return self.updates_per_epoch or (max(1, len(self.journal) // epochs) if epochs else 100)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last evaluation."""
        return metrics_in(self.evaluations[-1]) if self.evaluations else {}

    @property
    def title(self) -> str:
        """What was run, on one line: name, rule, and who did it."""
        if self.nodes == 1:
            return title_of(self.config, self.kind)
        together = replace(self.config, workers=max(1, len(self.workers)))
        return f"{title_of(together, self.kind)} on {self.nodes} machines"

    def __str__(self) -> str:
        """The run in one line."""
        speed = f"{self.seconds:.1f} s, {self.samples_per_second:,.0f} {self.unit}/s"
        best = f" · {self.best}" if self.best is not None else ""
        changed = f" · changed for stale gradients: {', '.join(self.compensation)}" if self.compensation else ""
        told = f"{self.title} · {self.updates:,} updates in {speed} · loss {self.loss:.4g}{best}"
        return f"{told} · {self.digest[:16]}…{changed}"

    def __repr__(self) -> str:
        """What a prompt, or a test that failed, shows of it: all its tensors and rows would fill pages."""
        return f"<Run {self}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(str(self))

    @property
    def optimizer_settings(self) -> dict[str, Any]:
        """The name of the optimizer and its learning rate, of its first group where there are several; each None where
        a Python program made the run and it was not saved, and the name where a kernel steps by itself."""
        config, origin = self.config, self.origin
        named = config.optimizer if origin is None or not origin.of_a_kernel else None
        return {
            "optimizer": named or (origin.optimizer if origin is not None else None),
            "lr": config.lr if config.lr is not None or origin is None else origin.lr,
        }

    def summary(self) -> dict[str, Any]:
        """What `run.json` and `hogwild run --json` hold."""
        config = self.config
        found = {
            "name": config.name,
            "update": config.update,
            "kind": self.kind,
            "kind_asked": config.kind,
            "kind_because": self.kind_because,
            "workers": config.workers,
            "nodes": self.nodes,
            **{name: getattr(config, name) for name in ("average_every", "outer_lr", "outer_momentum")},
            **self.optimizer_settings,
            "staleness": asdict(self.staleness),
            "updates": self.updates,
            "seconds": self.seconds,
            "startup_seconds": self.startup_seconds,
            "samples_per_second": self.samples_per_second,
            "loss": self.loss,
            "accuracy": self.metrics.get("accuracy"),
            "metrics": dict(self.metrics),
            "best": self.best.to_dict() if self.best is not None else None,
            "digest": self.digest,
            "ema_digest": self.ema_digest,
            "seed": config.seed,
            "out": str(self.out) if self.out else None,
            "stopped": self.stopped,
            "failures": list(self.failures),
            "in_doubt": list(self.in_doubt),
            "usage": [asdict(usage) for usage in self.workers],
            "audit": self.audit.to_dict() if self.audit else None,
            "rechecked": self.rechecked,
            "compensation": list(self.compensation),
            "curvature": self.curvature,
            "diverged": self.diverged,
            "changes": [asdict(change) for change in config.changes],
            "parameters": dict(config.own.parameters) if config.own is not None else {},
        }
        return {name: json_values(value) for name, value in found.items()}

    def save(self, out: Path, *, overwrite: bool = False) -> None:
        """Write the run directory, whole or not at all.

        Raises:
            ArgumentError: the folder is not empty, and it is not to be overwritten.
            RunDirectoryError: the disk is full or cannot be written; what was there before is still there.
        """
        with occupied(out):
            if not overwrite:
                refuse_taken(out)
            clear_leftovers(out)
            mine = self.origin is not None and identity_in_config(out / "config.toml") == self.origin.run
            self.write(out)
            if not mine:
                remove_files(out, self._files())

    def write(self, out: Path) -> None:
        """Replace the record in a folder that is this run's; errors are those of `save`."""
        try:
            keep(out, self._write)
        except (OSError, SafetensorError) as error:
            if isinstance(error, RunDirectoryError):
                raise
            raise RunDirectoryError(f"the run cannot be saved in {out}: {printable(str(error))}") from error

    def _files(self) -> list[str]:
        """The files of its record."""
        some = {ORIGIN: self.origin, BEST: self.best}
        return [*self._sealed, "config.toml", METRICS, "run.json", *(name for name in some if some[name] is not None)]

    @property
    def _sealed(self) -> list[str]:
        return [*SEALED_FILES, *([AVERAGED] if self.ema_state is not None else [])]

    def _write(self, folder: Path) -> None:
        run = self.origin.run if self.origin is not None else ""
        for state, name in ((self.state, "model.safetensors"), (self.ema_state, AVERAGED)):
            if state is not None:
                save_file(tensors_of(state), folder / name, {**({"run": run} if run else {}), **beside_tensors(state)})
        if self.best is not None:
            save_best(self.best, folder / BEST, run)
        np.save(folder / "journal.npy", self.journal, allow_pickle=False)
        rows = by_update(self.evaluations, logged_in_order(self.logged))
        texts = {"config.toml": self.config.to_toml(run), METRICS: as_json(rows)}
        if self.origin is not None:
            texts[ORIGIN] = self.origin.to_json()
        record = {
            "format": FORMAT,
            "run": run,
            **self.summary(),
            "samples": self.samples,
            "samples_before": self.samples_before,
            "seconds_before": self.seconds_before,
            "updates_per_epoch": self.updates_per_epoch,
            "seals": {str(version): [seal.digest, seal.marks] for version, seal in self.seals.items()},
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        record["sha256"] = {name: file_digest(folder / name) for name in (*self._sealed, METRICS)}
        (folder / "run.json").write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
