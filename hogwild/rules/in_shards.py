"""A version that several workers make together, in shards: each has a lock and a count of its own.

    who has the commit lock     the version is not said to be shared: makes all of it, in the lock; or says that it is,
                                where others are idle, and lets the lock go
    who looks next              it is said to be shared, and a shard is not stepped: steps it, in the shard's lock
    who finds them all stepped  does the rest in the commit lock, and publishes

What holds: the word that says so is written under the commit lock, before anything of that version is, and not taken
back; so nobody steps a shard of a version while another makes all of it, whoever died before. A shard counts a version
once it is stepped, and its count is at most head + 1: it is stepped only from the newest version, whose slot, state and
gradients nobody writes, so what is left half done is done again. A version that was made in one piece moves no count.
Whether a version is shared is a matter of time, and no bit depends on it.
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

    def cut(self, shards: int) -> None:
        """A version has so many; 0: it is always made in one piece."""
        self._shards = range(shards)
        self._always = shards > MOST or not self.control.alarms.works  # or it is not known who is idle
        self._without_core = max(0, self.control.workers - usable_cores())

    def _is_shared(self, version: int) -> bool:
        """True where the version after this one is made in shards, and by anyone: that is not taken back."""
        return self.control.observe(Word.SHARED) > version

    def _left(self, version: int) -> list[int]:
        """The shards that are still to be stepped from this version."""
        return [shard for shard in self._shards if self._shard_version(shard) <= version]

    def _shares(self, version: int, parts: Sequence[GradientSlot]) -> bool:
        """True where others step what is left of the version after this one; asked, and said, under the commit lock."""
        if not self._shards:
            return False
        if self._is_shared(version):
            return bool(self._left(version))
        if not self._helped() or not self._in_shards(version, parts):
            return False
        self.control.publish(Word.SHARED, version + 1)
        self.control.alarms.rouse(len(self._shards) - 1)
        return True

    def _helped(self) -> bool:
        """True where a core is idle, about: more workers sleep than have none."""
        return self._always or self.control.alarms.asleep() > self._without_core

    def _in_shards(self, version: int, parts: Sequence[GradientSlot]) -> bool:
        """True where it can be made in shards, which is the same for all: every parameter is stepped."""
        if any(self.state.optimizer_states[version % 2].ragged):
            return False
        return all(part.words[part.WHOLE] and part.words[part.STATUS] == part.USABLE for part in parts)

    def _shard_version(self, shard: int) -> int:
        with self.control.ordering():
            return self.state.shard_versions[shard][0]

    def _from_own(self, shards: Sequence[int]) -> Sequence[int]:
        """Those shards in an order that differs from worker to worker."""
        start = self.seat.index * len(shards) // self.control.workers
        return [*shards[start:], *shards[:start]]

    def _step_shard(self, shard: int, version: int, parts: Sequence[GradientSlot]) -> bool:
        """Step one shard from this version into the next. False: somebody is at it."""
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
