"""Batches of one sample, which some layers refuse in training, as BatchNorm does: where a worker failed at one, it is
named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hogwild.data.sources import DatasetSource, TensorSource
from hogwild.errors import WorkerError
from hogwild.run.job import Job


@contextmanager
def naming_lone_samples(job: Job) -> Iterator[None]:
    """Inside, what a worker raised at a last batch of an epoch that is one sample has a note that says so."""
    try:
        yield
    except WorkerError as error:
        if error.__cause__ is not None and error.batch is not None and _is_one_sample(job, error.batch):
            error.add_note(
                f"batch {error.batch}, the last of its epoch, has one sample; where that is why, drop_last=True, or "
                f"another batch_size than {job.config.batch_size}, mends it"
            )
        raise


def _is_one_sample(job: Job, batch: int) -> bool:
    """True where the batch of that number has what is left of an epoch, and that is one sample."""
    if not isinstance(job.source, TensorSource | DatasetSource):
        return False
    schedule = job.source.schedule
    is_last = batch % len(schedule) == len(schedule) - 1
    return is_last and schedule.batch_size > 1 and schedule.visited % schedule.batch_size == 1
