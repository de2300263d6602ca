"""How a run stands: what `progress=` and `stop=` are called with, and what is shown to a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """How a run stands: what `stop`, `progress` and the methods of a `Callback` are called with.

    Attributes:
        updates: applied so far.
        total: updates that the run is to have.
        seconds: since the first claim.
        samples_per_second: trained on, over those seconds.
        loss: the mean of the latest updates; NaN before the first.
        per_worker: gradients that each worker has computed.
        metrics: those of the last evaluation.
        staleness: the median of the latest updates: how many versions old each was computed on; NaN before the first.
        kind: "threads" or "processes": what the workers are.
        epoch: passes over the data that are made: 2.5 in the middle of the third. None where an epoch has no length.
    """

    updates: int
    total: int
    seconds: float
    samples_per_second: float
    loss: float
    per_worker: tuple[int, ...]
    metrics: Mapping[str, float]
    staleness: float = float("nan")
    kind: str = ""
    epoch: float | None = None


Stop = Callable[[Progress], bool]


@dataclass(frozen=True)
class Trace:
    """Versions to look at while a run is made: `see(version, state dict)` is called for each version in `at`, in the
    parent, on memory that is written again later. Under the rules in place a version may be passed over."""

    at: frozenset[int]
    see: Callable[[int, Mapping[str, Tensor]], None]
