"""A version with all that later updates read, as it travels to a machine that comes back: memory for memory.

    versions max(0, h − τ) … h │ the optimizer's state at h │ rows of the journal │ seals of its versions

Where each piece lies and how long it is follows from the plan and h, on both machines alike. While nobody can make
version h + 1 the newest, none of it is written: version h + 1 is made beside all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.shared.arena import as_tensor
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word


@dataclass(frozen=True)
class Brought:
    """A version that another machine had, in memory of its own: uint8, of `brought_bytes` bytes.

    `total` is the number of tickets of the run, as it was decided until then.
    """

    version: int
    total: int
    content: Tensor


def _pieces(state: SharedState, version: int) -> list[Tensor]:
    """The memory that it is in, of a rule that has its newest versions in a ring of slots."""
    slots, copies = state.slots, state.optimizer_states
    window = range(max(0, version + 2 - len(slots)), version + 1)
    return [
        *(as_tensor(slots[v % len(slots)].bytes) for v in window),
        as_tensor(copies[version % len(copies)].bytes),
        state.journal.first_rows(version).view(torch.uint8).flatten(),
        state.journal.first_seals(version),
    ]


def brought_bytes(state: SharedState, version: int) -> int:
    """The size of a version that is brought."""
    return sum(len(piece) for piece in _pieces(state, version))


def copied(state: SharedState, at_least: int) -> Brought | None:
    """The newest version; None where it is older than that, or is just being followed by the next."""
    control = state.control
    if control.observe(Word.HEAD) < at_least or not control.commit_lock.acquire(blocking=False):
        return None
    try:
        version = control.observe(Word.HEAD)
        return Brought(version, control[Word.TOTAL], torch.cat(_pieces(state, version)))
    finally:
        control.commit_lock.release()
        control.alarms.rouse(1)  # somebody may have found it taken


def lay_down(state: SharedState, brought: Brought) -> None:
    """Begin with that version, before any worker starts."""
    done = 0
    for piece in _pieces(state, brought.version):
        piece.copy_(brought.content[done : done + len(piece)])
        done += len(piece)
