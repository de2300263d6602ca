"""Early stopping: a callback that ends a run whose metric has not improved for some evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import SupportsIndex

from hogwild.errors import ArgumentError
from hogwild.run.callback import Callback, RunInfo
from hogwild.run.progress import Progress
from hogwild.run.saved.best import wanted_in


class EarlyStopping(Callback):
    """Ends a run when a metric of `evaluate` has not improved for so many evaluations, one after the other.

    A run that is resumed counts on from the evaluations before, so under `ordered` and `sync` it ends at the same
    version as one that was never stopped. `keep_best` keeps the version that was best.

    Args:
        metric: its name. The lowest is best where the name says loss, error or the like, and the highest elsewhere;
            NAME:min and NAME:max say it otherwise, as for `keep_best`.
        patience: evaluations without a better value that end the run.
        min_delta: a value improves the metric where it is better than the best before by more than this.

    Raises:
        ArgumentError: `metric` is no text, `patience` is no whole number above 0, or `min_delta` is below 0.
    """

    def __init__(self, metric: str, patience: int = 3, min_delta: float = 0.0) -> None:
        if not isinstance(metric, str):
            raise ArgumentError(f"metric {metric!r} is no name of a metric; 'accuracy' is one")
        if isinstance(patience, bool) or not isinstance(patience, SupportsIndex) or int(patience) < 1:
            raise ArgumentError(f"patience {patience!r} is no whole number above 0; 3 evaluations are a good start")
        if not min_delta >= 0:
            raise ArgumentError(f"min_delta {min_delta!r} is not 0 or more; 0.001 works")
        self.metric = metric
        self.patience = int(patience)
        self.min_delta = min_delta
        self._values: dict[int, float] = {}  # by version, as they came; lower is better

    def on_trial(self, metrics: Mapping[str, float]) -> None:
        """Refuse a metric that `evaluate` does not return."""
        if not metrics:
            raise ArgumentError(f"EarlyStopping has no {self.metric!r} to look at; give evaluate, which returns it")
        wanted_in(self.metric, metrics, subject="EarlyStopping")

    def on_begin(self, info: RunInfo) -> None:
        """Count from the evaluations before that have the metric, where the run is resumed."""
        self._values = {}
        for row in info.evaluations:
            with suppress(ArgumentError):
                self._see(row)

    def on_evaluation(self, progress: Progress) -> None:
        """Look at the metric."""
        self._see({**progress.metrics, "update": progress.updates})

    def should_stop(self, progress: Progress) -> bool:  # noqa: ARG002
        """True where the metric has not improved for long enough."""
        if not self._values:
            raise ArgumentError(f"EarlyStopping has no {self.metric!r} to look at; give evaluate, which returns it")
        return self.since >= self.patience

    @property
    def since(self) -> int:
        """Evaluations since the last that improved the metric."""
        best, since = float("inf"), -1
        for value in self._values.values():
            improved = since < 0 or value < best - self.min_delta
            best, since = (value, 0) if improved else (best, since + 1)
        return max(since, 0)

    def _see(self, row: Mapping[str, float]) -> None:
        """What is evaluated again counts as it is seen last."""
        metric, lowest = wanted_in(self.metric, row, subject="EarlyStopping")
        value = float(row[metric]) if lowest else -float(row[metric])
        self._values[int(row["update"])] = value if value == value else float("inf")
