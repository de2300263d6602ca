"""The protocols of `ordered`, `sync` and `snapshot` as data: lists of atomic steps, each naming what it mirrors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer import ENDED, NOBODY, Outcome, State, Step, Violation, put
from snapshot import Snapshot
from steps import COMMIT_LOCK, TORN, changed
from tickets import Size
from twice import Twice

WHOLE, AT_ONCE = -1, -2  # all pieces of a version: by who has its gradient and no lock, or in the commit lock
_SHARD_LOCK = frozenset({"shard.check", "shard.write", "shard.written", "shard.count", "shard.unlock"})


class Combining(Twice):
    """`hogwild.rules.combining`: gradients wait in slots, and whoever finds all those of an update makes the version.

    A version is made at once, or in pieces: its shards, in any order and by anyone, then what is left, which publishes
    it. Slots and optimizer state hold the version of each piece.
    """

    after_publish = "unlock"
    closes = True

    def __init__(self, size: Size, faults: Sequence[str] = (), strict: bool = True) -> None:
        super().__init__(size, faults, strict)
        self.staleness, self.per_update = self.form(size)
        self.slots = self.staleness + 2 - ("ring" in self.faults)
        self.waiting = self.staleness + 1 - ("few gradients" in self.faults)  # updates whose gradients may wait
        if size.twice:
            self.start = self.claims = "claim.again"

    def form(self, size: Size) -> tuple[int, int]:
        """(τ, M)"""
        raise NotImplementedError

    def first(self) -> State:
        first = super().first()
        empty = ((0, TORN),) * self.per_update * self.waiting
        return first._replace(gradients=empty, checked=(0,) * len(empty), counts=(0,) * self.size.shards)

    def working(self) -> list[Step]:
        stored = [
            Step("store.begin", "Combining._store", self.store_begin, "status"),
            Step("store.end", "Combining._store", self.store_end, "status"),
            Step("stamp", "Combining._store", self.stamp, "stamp"),
        ]
        counted = [
            Step("shard.write", "Combining._step_shard", self.shard_write, "shard"),
            Step("shard.written", "Combining._step_shard", self.shard_written),
            Step("shard.count", "Combining._step_shard", self.shard_count, "count"),
        ]
        if "stamp first" in self.faults:
            stored = [stored[2], stored[0], stored[1]]
        if "early shard" in self.faults:
            counted = [counted[2], counted[0], counted[1]]
        return [
            Step("claim.wait", "Worker._wait_for", self.wait),
            Step("claim.sleep", "Worker._may_go_on", self.sleep),
            Step("claim.look", "Combining.ready", self.look),
            Step("claim.looked", "Worker.claim", self.looked),
            Step("read", "Combining.read", self.read),
            Step("gradient", "Rule.gradient", self.gradient, "gradient"),
            Step("own.look", "Combining._apply_at_once", self.own_look),
            *stored,
            *(self.again() if self.size.twice else ()),
            Step("close", "Combining.close", lambda s, i: self.go_combining(put(s, i, present=0), i, ENDED)),
            Step("combine", "Combining.combine", self.combine),
            Step("shard.look", "Combining._work_on", self.shard_look),
            Step("shard.try", "Combining._step_shard", self.shard_try, "lock shard"),
            Step("shard.check", "Combining._step_shard", self.shard_check),
            *counted,
            Step("shard.unlock", "Combining._step_shard", lambda s, i: (s, "combine"), "unlock shard"),
            Step("make.look", "Combining._work_on", self.make_look),
            Step("make.try", "Combining._complete", self.make_try, "lock commits"),
            Step("make.check", "Combining._complete", self.make_check),
            *(self.sharing() if self.size.shards else ()),
            *self.making("Combining._make_version"),
            Step("unlock", "Combining._complete", self.unlock, "unlock commits"),
        ]

    # --- a ticket: an update, and which of its micro-batches

    def ready(self, s: State, i: int) -> bool:
        return s.head >= s.workers[i].ticket // self.per_update - self.staleness

    def may_start(self, s: State, i: int) -> bool:
        ticket = s.workers[i].ticket
        return self.ready(s, i) or ticket >= s.total or self.orphan_before(s, ticket)

    def wait(self, s: State, i: int) -> Outcome:
        if self.may_start(s, i):
            return s, "claim.look"
        if self.size.twice:
            return s, "claim.sleep"
        return self.go_combining(s, i, "claim.wait") if self.work_is_left(s) else None

    def sleep(self, s: State, i: int) -> Outcome:
        if self.may_start(s, i) or self.due(s, i) is not None:
            return put(s, i, back="claim.wait"), "again.choose"
        return self.go_combining(s, i, "claim.sleep") if self.work_is_left(s) else None

    def look(self, s: State, i: int) -> Outcome:
        return (s, "read") if self.ready(s, i) else self.go_combining(s, i, "claim.looked")

    def looked(self, s: State, i: int) -> Outcome:
        return s if self.ready(s, i) else self.give_up(s, i)

    def read(self, s: State, i: int) -> Outcome:
        version = self.read_by(s.workers[i].ticket // self.per_update)
        return self.read_version(s, i, version, version % self.slots)

    # --- its gradient: applied at once where its turn has come, else laid where it waits

    def own_look(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].ticket
        if self.per_update > 1 or s.head != ticket or ticket >= s.total or ticket in self.size.twice:
            return s, "stamp" if "stamp first" in self.faults else "store.begin"
        slot = (ticket + 1) % self.slots
        return put(s, i, base=ticket, slot=slot, piece=WHOLE, back="finish"), self.first_of_making

    def publish(self, s: State, i: int) -> Outcome:
        published = self.unnamed(super().publish(s, i))
        in_lock = s.workers[i].piece != WHOLE or self.after_show() != "publish"
        return published if in_lock else self.go_combining(published, i, s.workers[i].back)

    def store_begin(self, s: State, i: int) -> Outcome:
        place = self.place(s.workers[i].ticket)
        stamp = s.gradients[place][0]
        if stamp > s.head and "stamp first" not in self.faults:
            raise Violation(f"gradient slot {place} is to be written, and update {stamp - 1} has yet to be applied")
        if any(w.at in ("written", "shard.written") and w.base == stamp - 1 for w in s.workers):
            raise Violation(f"gradient slot {place} is to be written while version {stamp} is made of it")
        if any(w.at == "again.compare" and self.place(w.second) == place for w in s.workers):
            raise Violation(f"gradient slot {place} is to be written while somebody compares with it")
        return s._replace(gradients=changed(s.gradients, place, (stamp, TORN)))

    def store_end(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        place = self.place(me.ticket)
        stored = s._replace(gradients=changed(s.gradients, place, (s.gradients[place][0], (me.ticket, me.version))))
        return self.go_combining(stored, i, "finish") if "stamp first" in self.faults else stored

    def stamp(self, s: State, i: int) -> Outcome:
        place, number = self.place(s.workers[i].ticket), s.workers[i].ticket // self.per_update
        if s.workers[i].ticket in self.size.twice:
            s = self.named(s, i)
        stamped = s._replace(gradients=changed(s.gradients, place, (number + 1, s.gradients[place][1])))
        return stamped if "stamp first" in self.faults else self.go_combining(stamped, i, "finish")

    def members(self, s: State, number: int) -> int:
        return min(self.per_update, s.total - number * self.per_update)

    def waiting_for(self, s: State, number: int) -> tuple[tuple[int, Any], ...]:
        first = number % self.waiting * self.per_update
        return s.gradients[first : first + max(0, self.members(s, number))]

    def is_complete(self, s: State, number: int) -> bool:
        parts = self.waiting_for(s, number)
        there = bool(parts) and all(stamp == number + 1 for stamp, _ in parts)
        return there and ("unchecked" in self.faults or not self.unchecked(s, number))

    def check_parts(self, s: State, number: int) -> None:
        wanted = [(number * self.per_update + m, self.read_by(number)) for m in range(self.members(s, number))]
        parts = [content for _, content in self.waiting_for(s, number)]
        if parts != wanted:
            raise Violation(f"version {number + 1} is made of {parts}")

    # --- whoever finds the gradients of an update complete makes the next version, with others

    def work_is_left(self, s: State) -> bool:
        """Something that nobody is at."""
        if not self.is_complete(s, s.head):
            return False
        left = self.left(s, s.head) if s.shared > s.head else []
        return any(not self.held(s, shard) for shard in left) or (not left and not self.held(s, self.size.shards))

    def left(self, s: State, base: int) -> list[int]:
        return [shard for shard, count in enumerate(s.counts) if count <= base]

    def helped(self, s: State, i: int) -> bool:
        """Whether the next version is to be shared, as it is decided now."""
        idle = any(w.at in ("claim.wait", "claim.sleep") for j, w in enumerate(s.workers) if j != i)
        died = s.kills < self.size.kills
        return {"always": True, "never": False, "idle": idle, "before": not died, "after": died}[self.size.shares]

    def held(self, s: State, piece: int) -> bool:
        if piece == self.size.shards:
            return any(w.at in COMMIT_LOCK and w.piece != WHOLE for w in s.workers)
        return any(w.at in _SHARD_LOCK and w.piece == piece for w in s.workers)

    def combine(self, s: State, i: int) -> Outcome:
        if not self.is_complete(s, s.head):
            return self.leave_off(s, i)
        if "shared unlocked" in self.faults and s.shared <= s.head and self.helped(s, i):
            s = s._replace(shared=s.head + 1)
        if s.counts and s.shared > s.head:
            return put(s, i, base=s.head, slot=NOBODY, piece=0), "shard.look"
        return put(s, i, base=s.head, slot=NOBODY, piece=self.size.shards), "make.try"

    def leave_off(self, s: State, i: int) -> Outcome:
        return put(s, i, base=NOBODY, slot=NOBODY, piece=0, back=""), s.workers[i].back

    def next_shard(self, s: State, i: int) -> Outcome:
        return put(s, i, piece=s.workers[i].piece + 1), "shard.look"

    def shard_look(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        if me.piece == self.size.shards:
            return s, "make.look"
        if "shard ahead" in self.faults and self.is_complete(s, s.counts[me.piece]):
            return put(s, i, base=s.counts[me.piece])
        return s if s.counts[me.piece] <= me.base else self.next_shard(s, i)

    def shard_try(self, s: State, i: int) -> Outcome:
        return self.next_shard(s, i) if self.held(s, s.workers[i].piece) else s

    def shard_check(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        ahead = s.head != me.base and "shard ahead" not in self.faults
        if ahead or s.counts[me.piece] > me.base:
            return s, "shard.unlock"
        return put(s, i, slot=(me.base + 1) % self.slots)

    def shard_write(self, s: State, i: int) -> Outcome:
        return self.begin_piece(s, i, s.workers[i].piece)

    def shard_written(self, s: State, i: int) -> Outcome:
        return self.end_piece(s, i, s.workers[i].piece)

    def shard_count(self, s: State, i: int) -> Outcome:
        return s._replace(counts=changed(s.counts, s.workers[i].piece, s.workers[i].base + 1))

    def make_look(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        made = all(count > me.base for count in s.counts) or "early end" in self.faults
        return put(s, i, piece=self.size.shards) if made else self.leave_off(s, i)

    def make_try(self, s: State, i: int) -> Outcome:
        return self.leave_off(s, i) if self.held(s, self.size.shards) else s

    def make_check(self, s: State, i: int) -> Outcome:
        if s.head != s.workers[i].base or not self.is_complete(s, s.head):
            return s, "unlock"
        return put(s, i, slot=(s.head + 1) % self.slots)

    def sharing(self) -> list[Step]:
        return [
            Step("make.share", "Combining._leaves_to_all", self.make_share),
            Step("make.say", "Combining._leaves_to_all", self.make_say, "share"),
        ]

    def make_share(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        if s.shared > me.base and "made though shared" not in self.faults:
            left = self.left(s, me.base) and "early end" not in self.faults
            return (put(s, i, slot=NOBODY), "unlock") if left else (s, self.first_of_making)
        return s if self.helped(s, i) else (put(s, i, piece=AT_ONCE), self.first_of_making)

    def make_say(self, s: State, i: int) -> Outcome:
        return put(s._replace(shared=s.workers[i].base + 1), i, slot=NOBODY), "unlock"

    def unlock(self, s: State, i: int) -> Outcome:
        return self.leave_off(s, i) if "no second look" in self.faults else (s, "combine")

    # --- pieces

    def content(self, version: int, row: tuple[int, int] | None) -> object:
        return self.state_of(version)

    def state_of(self, version: int) -> object:
        return (version,) * (self.size.shards + 1)

    def write(self, s: State, i: int) -> Outcome:
        return self.begin_piece(s, i, s.workers[i].piece)

    def written(self, s: State, i: int) -> Outcome:
        return self.end_piece(s, i, s.workers[i].piece)

    def begin_piece(self, s: State, i: int, piece: int) -> State:
        me = s.workers[i]
        for one in self.pieces(piece):
            source, state = s.slots[me.base % self.slots][one], s.optimizer[me.base % 2][one]
            if (source, state) != (me.base, me.base):
                raise Violation(f"version {me.base + 1} is to be made of {source}, optimizer {state}")
        for j, w in enumerate(s.workers):
            if j != i and w.at in ("gradient", "again.gradient") and w.slot == me.slot:
                raise Violation(f"slot {me.slot} is to be written while worker {j} reads version {w.version} there")
            same = w.piece == me.piece or min(w.piece, me.piece) < 0
            if j != i and w.at in ("written", "shard.written") and same:
                raise Violation(f"workers {i} and {j} write the same piece at once")
        return self.set_piece(s, i, piece, TORN)

    def pieces(self, piece: int) -> range:
        return range(self.size.shards + 1) if piece < 0 else range(piece, piece + 1)

    def end_piece(self, s: State, i: int, piece: int) -> State:
        me = s.workers[i]
        if piece != WHOLE:
            self.check_parts(s, me.base)
        elif (me.ticket, me.version) != (me.base, self.read_by(me.base)):
            raise Violation(f"version {me.base + 1} is made of {(me.ticket, me.version)}")
        return self.set_piece(s, i, piece, me.base + 1)

    def set_piece(self, s: State, i: int, piece: int, value: int) -> State:
        me = s.workers[i]
        copy = (me.base + 1) % 2
        slot, state = s.slots[me.slot], s.optimizer[copy]
        for one in self.pieces(piece):
            slot, state = changed(slot, one, value), changed(state, one, value)
        return s._replace(slots=changed(s.slots, me.slot, slot), optimizer=changed(s.optimizer, copy, state))

    def row(self, s: State, i: int) -> tuple[int, int]:
        return s.workers[i].base, self.read_by(s.workers[i].base)

    # --- what must hold

    def done(self, s: State, ticket: int) -> bool:
        number = ticket // self.per_update
        return s.head > number or s.gradients[self.place(ticket)][0] == number + 1

    def readable(self, s: State) -> Sequence[int]:
        return range(max(0, s.head - self.staleness), s.head + 1)

    def invariant(self, s: State) -> None:
        if self.strict and any(count > s.head + 1 for count in s.counts):
            raise Violation(f"a shard is more than a version ahead: {s.counts}, head {s.head}")
        super().invariant(s)


class Ordered(Combining):
    """`hogwild.rules.ordered`: one gradient an update, computed on version u − τ."""

    rule = "ordered"

    def form(self, size: Size) -> tuple[int, int]:
        return size.staleness, 1


class Sync(Combining):
    """`hogwild.rules.sync`: M micro-batches an update, computed on version u."""

    rule = "sync"

    def form(self, size: Size) -> tuple[int, int]:
        return 0, size.micro_batches


RULES = {"ordered": Ordered, "sync": Sync, "snapshot": Snapshot}
