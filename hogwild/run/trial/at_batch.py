"""Code of the user's, called outside of a run as a worker would call it at one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hogwild.data.seeding import preserved_generators, seed_update
from hogwild.workers.worker_info import WorkerInfo, informed, log_to_no_run


@contextmanager
def at_batch(seed: int, workers: int, update: int = 0, batch: int = 0) -> Iterator[WorkerInfo]:
    """Inside, this thread is worker 0 of so many at that batch; generators are as they were when it is left."""
    info = WorkerInfo(0, workers, seed, log_to_no_run)
    with preserved_generators(), informed(info), torch.enable_grad():
        seed_update(seed, batch)
        info.start(update, batch)
        yield info
