"""What batches are made of in the caller's process: of a data set of the user's own, for processes, a copy.

Such a data set may open a file when it is first indexed, and could then be sent to no worker any more.
"""

from __future__ import annotations

from hogwild.data.sources import DatasetSource, Source
from hogwild.run.job import Job
from hogwild.workers.package import twin_of


def data_to_try(job: Job) -> Source | None:
    """A copy as a worker process is given it, made before it has been used; else the source itself, as threads have it.

    What is large in it is not copied.
    """
    source = job.source
    if "threads" in (job.config.kind, job.kind) or not isinstance(source, DatasetSource):
        return source
    if type(source.dataset) in (list, tuple):  # samples, and no code of the user's own
        return source
    return twin_of(source) or source
