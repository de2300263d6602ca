"""Has the loss risen above where it began? Looked at while a run is made, and at its end.

Two windows of losses are compared, the first of the run and the last. The loss has risen above where it began where the
mean of the last is higher, by more than three standard errors of the difference, and by more than a twentieth of the
first; or where it is not finite any more. One that is not finite now and then, of a batch that was left out, counts in
no mean. A loss that grows at once has grown within the first window already: so it
has risen too where no loss is below 0 and the median of the last is more than twice the loss of the first update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 50  # updates; a tenth of a run that is shorter than ten of them
_FEWEST = 10
_LOST = 5  # losses that are not finite, one after the other: it is not finite any more
_ERRORS, _SHARE, _TIMES = 3.0, 0.05, 2.0


@dataclass(frozen=True)
class RisenLoss:
    """A loss that is higher than it began: means over the first `began` updates and over the `window` before
    `update`."""

    update: int
    window: int
    first: float
    last: float
    began: int

    def __str__(self) -> str:
        began = f"the first {self.began} updates" if self.began > 1 else "the first update"
        return (
            f"the loss has risen above where it began: {self.first:.4g} over {began}, "
            f"{self.last:.4g} over the {self.window} before update {self.update:,}"
        )


def divergence(losses: NDArray[np.float64], total: int | None = None) -> RisenLoss | None:
    """Whether the losses so far, in the order of the updates, have risen above where they began; None where
    they have not, or are too few. `total` is how many the run will have."""
    window = min(WINDOW, (total or len(losses)) // 10)
    if window < _FEWEST or len(losses) < 2 * window:
        return None
    first, last = usable(losses[:window]), losses[-window:]
    last = usable(last) if np.isfinite(last[-_LOST:]).any() else last
    with np.errstate(invalid="ignore", over="ignore"):
        before, now = float(first.mean()), float(last.mean())
        error = math.sqrt(float(first.var()) / len(first) + float(last.var()) / len(last))
    grown = RisenLoss(len(losses), window, before, now, window)
    at_once = RisenLoss(len(losses), window, float(losses[0]), now, 1)
    if not math.isfinite(now):
        return grown if math.isfinite(before) else at_once if math.isfinite(losses[0]) else None
    if now - before > max(_ERRORS * error, _SHARE * abs(before)):
        return grown
    rose = float(np.median(last)) > _TIMES * float(losses[0]) > 0
    return at_once if rose and np.nanmin(losses) >= 0 else None


def usable(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of some losses that have a mean: the finite ones, or all where less than half are."""
    finite = losses[np.isfinite(losses)]
    return finite if 2 * len(finite) >= len(losses) else losses


def usual_loss(losses: NDArray[np.float64]) -> float:
    """The mean of some losses, without those of batches that were left out; NaN of none."""
    with np.errstate(invalid="ignore", over="ignore"):  # losses that are not finite have no mean
        return float(np.mean(usable(losses))) if len(losses) else math.nan
