"""Numbers in the data that are none: when a loss is not finite, the batch may be why, and then it is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hogwild.data.before import DataBefore
from hogwild.data.sources import own_copy
from hogwild.errors import NonFiniteError
from hogwild.run.job import Job
from hogwild.run.trial.at_batch import at_batch

WAYS_OUT = "leave such samples out, or fill them (torch.nan_to_num)"


def hole_in(batch: Any, path: str = "") -> str | None:
    """What a batch holds that is no number, and where; None where it holds numbers only."""
    if isinstance(batch, torch.Tensor):
        nan = bool(batch.isnan().any())
        if nan or bool(batch.isinf().any()):
            return f"{'NaN' if nan else 'infinity'}{f', in its tensor{path}' if path else ''}"
        return None
    parts: Any = ()
    if isinstance(batch, dict):
        parts = batch.items()
    elif isinstance(batch, list | tuple):
        parts = enumerate(batch)
    return next((hole for key, part in parts if (hole := hole_in(part, f"{path} {key!r}"))), None)


@contextmanager
def naming_holes(job: Job) -> Iterator[None]:
    """Inside, a loss or gradient that is not finite because its batch is not says so.

    Raises:
        NonFiniteError: as it was raised, or with the batch in front.
    """
    try:
        yield
    except NonFiniteError as error:
        hole = _hole_at(job, error)
        if hole is None:
            raise
        told = f"data: batch {hole}; {WAYS_OUT}: {error}"
        raise NonFiniteError(told, worker=error.worker, update=error.update, batch=error.batch) from error.__cause__


def _hole_at(job: Job, error: NonFiniteError) -> str | None:
    """The batch that holds one, and what; of those that an error is about, which are fetched once more."""
    if job.source is None or error.batch is None or error.update is None:
        return None
    before = DataBefore(job.source)
    try:
        for batch in range(error.batch, min(error.batch + job.rule.batches_per_ticket, job.planned_batches)):
            with at_batch(job.config.seed, job.config.workers, error.update, batch) as info:
                hole = hole_in(own_copy(job.source).batch(batch, info.generator))
            if hole is not None:
                return f"{batch} holds {hole}"
        return None
    except Exception:  # the error that is told is the first
        return None
    finally:
        before.put_back()
