"""The locks that processes share: bytes of the arena's file, whatever they hold."""

from __future__ import annotations

from hogwild.shared.arena import Arena
from hogwild.shared.locks import FileLock
from hogwild.shared.tickets import Control

_TICKET_BYTE, _COMMIT_BYTE, _SHARD_BYTES = 0, 1, 2  # one for each shard


def ticket_lock_of(arena: Arena) -> FileLock:
    """The lock on who owns which ticket."""
    return FileLock(arena.descriptor, _TICKET_BYTE)


def commit_lock_of(arena: Arena) -> FileLock:
    """The lock on making the next version."""
    return FileLock(arena.descriptor, _COMMIT_BYTE)


def set_locks(control: Control, arena: Arena, shards: int) -> None:
    """Give a control all of them."""
    control.ticket_lock = ticket_lock_of(arena)
    control.commit_lock = commit_lock_of(arena)
    control.shard_locks = [FileLock(arena.descriptor, _SHARD_BYTES + shard) for shard in range(shards)]
