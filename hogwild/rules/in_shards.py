"""A version that several workers make together, in shards: each has a lock and a count of its own.

    the holder of the commit lock            makes the whole version in the lock; or, where other workers are idle,
                                             marks the version as shared and lets the lock go
    any worker, once the version is shared   steps a shard that is not stepped yet, in the lock of that shard
    the worker that finds all shards stepped does the rest in the commit lock, and publishes

Invariants, whichever worker dies at whatever line:
  - A version is marked as shared under the commit lock, before anything of it is written, and the mark is never taken
    back. So nobody steps a shard of a version while another worker makes all of it.
  - A shard counts the versions up to which it is stepped, and its count is at most head + 1. It is stepped only from
    the newest version. Nobody writes the slot, the state and the gradients of that one, so a shard that was left half
    done is done again.
  - A version that was made in one piece moves no count.

Whether a version is shared depends on timing. No bit depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hogwild.rules.versioned import Versioned
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.limits import usable_cores
from hogwild.shared.shards import MOST
from hogwild.shared.words import Hook, Word


class InShards(Versioned):
    """A rule whose next version may be made by several workers at once."""

    def set_shards(self, shards: int) -> None:
        """Say how many shards a version has. 0: it is always made in one piece."""
        self._shards = range(shards)
        self._always = shards > MOST or not self.control.alarms.works  # or it is not known who is idle
        self._without_core = max(0, self.control.workers - usable_cores())

    def _is_shared(self, version: int) -> bool:
        """True where the version after this one is marked as shared, so that any worker steps shards of it."""
        return self.control.observe(Word.SHARED) > version

    def _unstepped(self, version: int) -> list[int]:
        """The shards that are still to be stepped from this version."""
        return [shard for shard in self._shards if self._shard_version(shard) <= version]

    def _leaves_to_all(self, version: int, parts: Sequence[GradientSlot]) -> bool:
        """Under the commit lock: leave the shards of the version after this one to all workers, where that is possible
        and others are idle. True where they are left, and some of them are still to be stepped."""
        if not self._shards:
            return False
        if self._is_shared(version):
            return bool(self._unstepped(version))
        if not self._others_are_idle() or not self._can_be_shared(version, parts):
            return False
        self.control.publish(Word.SHARED, version + 1)
        self.control.alarms.rouse(len(self._shards) - 1)
        return True

    def _others_are_idle(self) -> bool:
        """True where about one core is idle: more workers sleep than there are workers without a core."""
        return self._always or self.control.alarms.asleep() > self._without_core

    def _can_be_shared(self, version: int, parts: Sequence[GradientSlot]) -> bool:
        """True where the version can be made in shards. It can where every parameter has a gradient to be stepped by,
        and so every worker finds the same."""
        if any(self.state.optimizer_states[version % 2].ragged):
            return False
        return all(part.words[part.WHOLE] and part.words[part.STATUS] == part.USABLE for part in parts)

    def _shard_version(self, shard: int) -> int:
        with self.control.ordering():
            return self.state.shard_versions[shard][0]

    def _in_own_order(self, shards: Sequence[int]) -> Sequence[int]:
        """The same shards, in an order that differs from worker to worker, so that few want the same one."""
        start = self.seat.index * len(shards) // self.control.workers
        return [*shards[start:], *shards[:start]]

    def _step_shard(self, shard: int, version: int, parts: Sequence[GradientSlot]) -> bool:
        """Step one shard from this version into the next. False: another worker is stepping it."""
        control, state, lock = self.control, self.state, self.control.shard_locks[shard]
        if not lock.acquire(blocking=False):
            return False
        try:
            if control.observe(Word.HEAD) == version and self._shard_version(shard) <= version:
                self.give_up_if_aborted()
                slots = state.slots[self.place(version)], state.slots[self.place(version + 1)]
                states = state.optimizer_states[version % 2], state.optimizer_states[(version + 1) % 2]
                self.seat.optimizer.advance_shard(shard, version, parts, *slots, *states)
                self.seat.pause(Hook.STEPPING)
                with control.ordering():
                    state.shard_versions[shard][0] = version + 1
        finally:
            lock.release()
        return True
