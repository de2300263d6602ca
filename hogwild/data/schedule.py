"""(seed, number of a batch) → the samples of that batch.

Invariant: a batch depends on the seed and its number alone, so it does not matter who computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hogwild.data.seeding import mix

_SHUFFLE = 1  # keeps the shuffle's random stream apart from that of the updates
_AHEAD = 32  # batches that are cut at once for who asks for one after the other


class Schedule:
    """Which samples belong to update u: a fresh shuffle every epoch, each sample once, a partial last batch or none.

    It keeps the order of the last epoch, unlocked: each worker has one of its own.

    Args:
        samples: size of the data set.
        batch_size: samples in a batch; the last of an epoch has what is left.
        shuffle: False visits the samples in order.
        seed: of the shuffles.
        drop_last: True leaves out a last batch that is not a whole one.
    """

    def __init__(
        self, samples: int, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.visited = samples - samples % batch_size if drop_last else samples  # in the batches of an epoch
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)
        self._first = 0  # the update that `_cut` begins with
        self._cut: Sequence[Tensor] = ()  # the sample numbers of some updates, one after the other

    def __len__(self) -> int:
        """Updates in an epoch."""
        return -(-self.visited // self.batch_size)

    def indices(self, update: int) -> Tensor:
        """The sample numbers of that update, int64 of shape (B,), B ≤ batch_size."""
        place = update - self._first
        if not 0 <= place < len(self._cut):
            number = _AHEAD if place == len(self._cut) else 1  # whoever goes on where it was is likely to go on so
            self._first, self._cut, place = update, self._cut_from(update, number), 0
        return self._cut[place]

    def _cut_from(self, update: int, number: int) -> Sequence[Tensor]:
        """The sample numbers of that update and of the `number` - 1 after it, as far as its epoch goes."""
        epoch, batch = divmod(update, len(self))
        start = batch * self.batch_size
        stop = min(start + number * self.batch_size, self.visited)
        if not self.shuffle:
            return torch.split(torch.arange(start, stop), self.batch_size)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, _SHUFFLE, epoch))
            self._order = torch.randperm(self.samples, generator=generator)
            self._epoch = epoch
        return torch.split(self._order[start:stop], self.batch_size)
