"""The loop that `hogwild.train` runs in every worker: claim, read, compute, commit."""

from __future__ import annotations

from hogwild.workers.worker import Worker


def train_loop(worker: Worker) -> None:
    """Compute and commit every gradient there is."""
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        worker.commit(ticket, worker.gradient(ticket, replica))  # no name holds a gradient while the next is computed
