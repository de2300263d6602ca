"""(seed, number of a batch) → the samples of that batch.

Invariant: a batch depends on the seed and its number alone, so it does not matter who computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.data.seeding import mix

_SHUFFLE = 1  # keeps the shuffle's random stream apart from that of the updates


class Schedule:
    """Which samples belong to update u: a fresh shuffle every epoch, each sample once, a partial last batch.

    It keeps the order of the last epoch, unlocked: each worker has one of its own.

    Args:
        samples: size of the data set.
        batch_size: samples in a batch; the last of an epoch has what is left.
        shuffle: False visits the samples in order.
        seed: of the shuffles.
    """

    def __init__(self, samples: int, batch_size: int, shuffle: bool = True, seed: int = 0) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Updates in an epoch."""
        return -(-self.samples // self.batch_size)

    def indices(self, update: int) -> Tensor:
        """The sample numbers of that update, int64 of shape (B,), B ≤ batch_size."""
        epoch, batch = divmod(update, len(self))
        start = batch * self.batch_size
        stop = min(start + self.batch_size, self.samples)
        if not self.shuffle:
            return torch.arange(start, stop)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, _SHUFFLE, epoch))
            self._order = torch.randperm(self.samples, generator=generator)
            self._epoch = epoch
        return self._order[start:stop]
