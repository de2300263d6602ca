"""The training loss as curves show it: what is finite of it, and its mean over the batches around each update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hogwild.run.result import Run

_BLOCKS = 1_000  # of a smoothed curve, about
_SHARE = 50  # of them to a mean: a fiftieth of the run


def finite_losses(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(losses, the versions that their updates made), without losses that are not finite."""
    finite = np.isfinite(run.losses)
    return run.losses[finite], run.journal["version"][finite].astype(float)


def smoothed_loss(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """(updates, mean loss of the batches around each, how many batches that are).

    Sums of windows, not differences of a running sum: a loss of 1e30 once would take all digits from what follows.
    """
    losses, versions = finite_losses(run)
    block = max(1, len(losses) // _BLOCKS)  # means of blocks first, so that a run of any length takes a moment
    starts = np.arange(0, len(losses) - len(losses) % block, block)
    if not len(starts):
        return versions, losses, 1
    means, middles = (np.add.reduceat(part[: len(starts) * block], starts) / block for part in (losses, versions))
    width = max(1, len(means) // _SHARE)
    kernel = np.full(width, 1 / width)
    return np.convolve(middles, kernel, "valid"), np.convolve(means, kernel, "valid"), width * block
