"""Run: the result of a training, as data."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hogwild.config import RunConfig
from hogwild.errors import RunDirectoryError, printable
from hogwild.rules.registry import title_of
from hogwild.run.audit import Audit
from hogwild.run.directory import FORMAT, SEALED_FILES, file_digest
from hogwild.shared.journal import Seal


@dataclass(frozen=True)
class Staleness:
    """How old the version that a gradient was computed on was when it was applied, in updates.

    `set` is the staleness that was asked for, under `ordered`; None elsewhere.
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
    """What one worker did and used: gradients computed, seconds of CPU and of waiting for others, bytes of memory.

    `rss` and `pss` are of its process (a thread has that of the whole program); `pss` is known on Linux only.
    """

    worker: int
    computed: int
    skipped: int
    cpu_seconds: float
    waited_seconds: float
    rss: int
    pss: int | None


@dataclass(frozen=True)
class Run:
    """What a training came to.

    Attributes:
        config: its settings.
        state: the final state dict, in memory of its own.
        digest: of the final state.
        updates: applied to the model, this run's and those it resumed from.
        samples: trained on in this run.
        seconds: from the first claim to the last commit.
        startup_seconds: from the call of `train` to the first claim.
        journal: one row per update, in commit order; fields as in `hogwild.journal.ROW`.
        seals: version → the bits of that version, every so many, for the rules that can be replayed.
        evaluations: one mapping per evaluation: `update`, `seconds` since the first claim, and the metrics.
        logged: what workers recorded by `worker_info().log(...)`, with `update`, `batch` and `worker`.
        workers: one `WorkerUsage` each.
        staleness: how old the versions were that gradients were computed on.
        failures: for each worker that raised, died or hung, in order: one line, then its traceback or stacks, if any.
        in_doubt: updates that may have been applied in part, or not, because their worker ended while it wrote.
        stopped: why the run ended before its last update, if it did.
        audit: what share of the computed gradient was applied; None where none was made, or could be: plain SGD without
            clipping has one, unless a worker died and its account with it.
        out: directory it was saved in, if it was.
    """

    config: RunConfig
    state: Mapping[str, Tensor]
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

    @property
    def samples_per_second(self) -> float:
        """Samples trained on per second of training."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def losses(self) -> NDArray[np.float64]:
        """The loss of every update's batch, in commit order."""
        return cast("NDArray[np.float64]", self.journal["loss"])

    @property
    def loss(self) -> float:
        """The mean loss of the last epoch's worth of updates, or of the last hundred where there are no epochs."""
        return float(np.mean(self.losses[-self._tail :])) if len(self.journal) else float("nan")

    @property
    def _tail(self) -> int:
        epochs = self.config.epochs
        return max(1, len(self.journal) // epochs) if epochs else 100

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last evaluation."""
        last = self.evaluations[-1] if self.evaluations else {}
        return {key: value for key, value in last.items() if key not in ("update", "seconds")}

    def __str__(self) -> str:
        """The run in one line."""
        speed = f"{self.seconds:.1f} s, {self.samples_per_second:,.0f} samples/s"
        title = title_of(self.config)
        return f"{title} · {self.updates:,} updates in {speed} · loss {self.loss:.4g} · {self.digest[:16]}…"

    def summary(self) -> dict[str, Any]:
        """What `run.json` and `hogwild run --json` hold."""
        config = self.config
        return {
            "name": config.name,
            "update": config.update,
            "kind": config.kind,
            "workers": config.workers,
            "staleness": asdict(self.staleness),
            "updates": self.updates,
            "seconds": self.seconds,
            "startup_seconds": self.startup_seconds,
            "samples_per_second": self.samples_per_second,
            "loss": _json_number(self.loss),
            "accuracy": _json_number(self.metrics.get("accuracy")),
            "metrics": {key: _json_number(value) for key, value in self.metrics.items()},
            "digest": self.digest,
            "seed": config.seed,
            "out": str(self.out) if self.out else None,
            "stopped": self.stopped,
            "failures": list(self.failures),
            "in_doubt": list(self.in_doubt),
            "usage": [{**asdict(usage), "cpu_seconds": _json_number(usage.cpu_seconds)} for usage in self.workers],
            "audit": self.audit.to_dict() if self.audit else None,
        }

    def save(self, out: Path) -> None:
        """Write the run directory, whole or not at all.

        Raises:
            RunDirectoryError: the disk is full or cannot be written; what was there before is still there.
        """
        try:
            self._save(out)
        except (OSError, SafetensorError) as error:
            raise RunDirectoryError(f"the run cannot be saved in {out}: {printable(str(error))}") from error

    def _save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=out))
        try:
            save_file({k: v.contiguous() for k, v in self.state.items()}, staging / "model.safetensors")
            np.save(staging / "journal.npy", self.journal, allow_pickle=False)
            (staging / "config.toml").write_text(self.config.to_toml(), encoding="utf-8")
            lines = [json.dumps({k: _json_number(v) for k, v in row.items()}) for row in self.evaluations]
            (staging / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            record = {
                "format": FORMAT,
                **self.summary(),
                "seals": {str(version): [seal.digest, seal.marks] for version, seal in self.seals.items()},
                "sha256": {name: file_digest(staging / name) for name in SEALED_FILES},
            }
            (staging / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            # run.json comes last: a directory without it is not taken for a whole run.
            (out / "run.json").unlink(missing_ok=True)
            for name in ("model.safetensors", "journal.npy", "config.toml", "metrics.jsonl", "run.json"):
                (staging / name).replace(out / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _json_number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; they become null."""
    return value if value is None or np.isfinite(value) else None
