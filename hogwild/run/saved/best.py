"""The best version of a run, by one metric of `evaluate`: kept in memory, and in best.safetensors where it is saved.

    evaluation → is it better? → the state of that version → best.safetensors, whole or not at all → the next checkpoint

A checkpoint holds the best of all versions up to its own, so that a run that goes on from it forgets what it will
compute again. Training waits for each evaluation where the run is saved, so that no checkpoint is ahead of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hogwild.errors import ArgumentError, RunDirectoryError, printable
from hogwild.run.saved.directory import BEST, placed
from hogwild.run.saved.metrics import Row, finite_or_none, metrics_in
from hogwild.run.state_dicts import beside_tensors, state_from, tensors_of
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.optimizer_state import AVERAGE

_LOW_IS_GOOD = {
    *("loss", "error", "err", "errors", "seconds", "cost", "regret", "distance", "deviation", "residual"),
    *("nll", "entropy", "crossentropy", "ce", "bce", "xent", "logloss", "kl", "perplexity", "ppl", "brier"),
    *("mse", "mae", "rmse", "msle", "rmsle", "mape", "wer", "cer", "eer", "fid"),
}
_MODES = {"min": True, "max": False}


@dataclass(frozen=True)
class Best:
    """The version of a run whose metric was best; the first of several that are equal.

    Attributes:
        metric: its name.
        update: the version.
        value: of the metric.
        state: the state dict of that version, in memory of its own.
        digest: SHA-256 of that state, as `hogwild.digest` computes it.
    """

    metric: str
    update: int
    value: float
    state: Mapping[str, Any] = field(repr=False, compare=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the state."""
        return digest_bytes(self.state).hex()

    def __str__(self) -> str:
        """In a few words: best accuracy 0.981 at update 1,200."""
        return f"best {self.metric} {self.value:.4g} at update {self.update:,}"

    def to_dict(self) -> dict[str, Any]:
        """What run.json holds of it."""
        return {**self.to_metadata(), "value": finite_or_none(self.value), "digest": self.digest}

    def to_metadata(self) -> dict[str, Any]:
        """What the file of its state, and a checkpoint, say of it."""
        return {"metric": self.metric, "update": self.update, "value": self.value}

    @classmethod
    def of_metadata(cls, text: str, state: Mapping[str, Any]) -> Best:
        """The best that such metadata, as JSON, tell of.

        Raises:
            ValueError, KeyError, TypeError: they do not.
        """
        found = json.loads(text)
        return cls(str(found["metric"]), int(found["update"]), float(found["value"]), state)


class BestKeeper:
    """Keeps the best version of a run as its evaluations come.

    Args:
        wanted: the metric, NAME, NAME:min or NAME:max; None keeps nothing.
        out: directory of the run, if it is saved.
        run: its identity.
        best: that of the parts before it was resumed.

    Attributes:
        wanted: the same.
    """

    def __init__(self, wanted: str | None, out: Path | None, run: str, best: Best | None) -> None:
        self.best = best
        self.wanted = wanted
        self._out = out
        self._run = run
        self._before: Best | None = None  # the evaluation of `best`
        self._metric = best.metric if best is not None else None  # that an earlier evaluation had

    def try_metrics(self, metrics: Row) -> None:
        """Refuse a metric that is not among those that `evaluate` returned on trial.

        Raises:
            ArgumentError: it is not.
        """
        if self.wanted is not None:
            wanted_in(self.wanted, metrics)

    def see(self, row: Row, state: Callable[[str], Mapping[str, Any]]) -> None:
        """A version was evaluated; `state` gives a copy of what that metric is of. One that is seen again counts as it
        is seen last.

        Raises:
            ArgumentError: evaluate returned no such metric, or does no more.
            RunDirectoryError: the file cannot be written.
        """
        if self.wanted is None:
            return
        metric, lowest = wanted_in(self.wanted, row, self._metric)
        self._metric = metric
        value, kept = row[metric], self.best
        if kept is not None and kept.update == row["update"]:
            kept = self._before
        self._before, now = kept, kept
        if math.isfinite(value) and (kept is None or (value < kept.value if lowest else value > kept.value)):
            now = Best(metric, int(row["update"]), value, state(metric))
        if now is not self.best:
            self.best = now
            self.put_back()

    def forget_after(self, version: int) -> None:
        """Go back to the best of the versions up to that one, the last that was published.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        if self.best is not None and self.best.update > version:
            self.best = self._before
            self.put_back()

    def put_back(self) -> None:
        """Make the file in the directory that of the best version now.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        if self._out is None or self.wanted is None:
            return
        try:
            if self.best is None:
                (self._out / BEST).unlink(missing_ok=True)
                return
            with placed(self._out, BEST) as path:
                save_best(self.best, path, self._run)
        except (OSError, SafetensorError) as error:
            raise RunDirectoryError(f"no {BEST} in {self._out}: {printable(str(error))}") from error


def wanted_in(wanted: str, row: Row, earlier: str | None = None, *, subject: str = "keep_best") -> tuple[str, bool]:
    """(the metric, whether the lowest is best) that is meant, of those in a row; an `earlier` one had that metric.

    Raises:
        ArgumentError: there is none; the message says what wanted it.
    """
    names = metrics_in(row)
    name, _, mode = wanted.rpartition(":")
    metric = name if name in names and mode in _MODES else wanted
    if metric not in names and earlier is not None:
        raise ArgumentError(
            f"evaluate returned no {earlier!r} at update {row['update']:.0f}, though it had before; {subject} needs it "
            f"of every evaluation, and this one has: {', '.join(names) or 'none'}"
        )
    if metric not in names:
        raise ArgumentError(f"{subject} {wanted!r} is no metric that evaluate returns; {_meant(wanted, names)}")
    return metric, kept_lowest(wanted, metric)


def _meant(wanted: str, names: Collection[str]) -> str:
    """What would work in place of a metric that is none."""
    name, _, mode = wanted.rpartition(":")
    averaged = wanted.partition(":")[0].removeprefix(f"{AVERAGE}_")
    if name in names:
        return f"{mode!r} is neither min nor max; {name}, {name}:min and {name}:max work"
    if averaged in names and averaged != wanted:
        return "those of a moving average need one, as by ema=0.999"
    close = get_close_matches(wanted, names, 1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names) or 'none'}"


def kept_lowest(wanted: str, metric: str) -> bool:
    """True where the version with the lowest value of that metric was kept, as `keep_best` wanted it."""
    name, _, mode = wanted.rpartition(":")
    return _MODES[mode] if name == metric and mode in _MODES else lowest_is_best(metric)


def lowest_is_best(name: str) -> bool:
    """True for losses, errors and seconds, as far as the name of a metric tells."""
    return bool(_LOW_IS_GOOD & set(re.split(r"[^a-z]+", name.lower())))


def save_best(best: Best, path: Path, run: str) -> None:
    """Write the state of the best version, with the identity of its run."""
    metadata = {"run": run, "best": json.dumps(best.to_metadata()), **beside_tensors(best.state)}
    save_file(tensors_of(best.state), path, metadata)


def load_best(folder: Path, run: str | None = None) -> Best | None:
    """The best version that a run's directory holds; None where it holds none.

    Raises:
        RunDirectoryError: the file is damaged, or of another run than `run`.
    """
    path = folder / BEST
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if run is not None and metadata.get("run", "") != run:
                raise RunDirectoryError(f"{path} is of another run than the rest of {folder}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
            return Best.of_metadata(metadata["best"], state_from(tensors, metadata))
    except RunDirectoryError:
        raise
    except Exception as error:  # what a hostile header may lead to is not known
        raise RunDirectoryError(f"{path} is damaged: {printable(str(error))}") from error
