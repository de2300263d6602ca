"""The protocols of `ordered`, `sync` and `snapshot` as data: lists of atomic steps, each naming what it mirrors."""

from __future__ import annotations

from collections.abc import Sequence

from explorer import NOBODY, Outcome, State, Step, Violation, put
from steps import TORN, Model, changed
from tickets import Size


class Ordered(Model):
    """`hogwild.rules.ordered`: update u reads version u − τ; versions are made in the order of the updates."""

    rule = "ordered"

    def __init__(self, size: Size, faults: Sequence[str] = (), strict: bool = True) -> None:
        super().__init__(size, faults, strict)
        self.slots = size.staleness + 2 - ("ring" in self.faults)

    def working(self) -> list[Step]:
        return [
            Step("claim.wait", "Worker._may_start", self.wait),
            Step("claim.look", "Worker.claim", self.look),
            Step("read", "Ordered.read", self.read),
            Step("gradient", "Rule.gradient", self.gradient, "gradient"),
            Step("commit.wait", "Ordered.commit", self.wait_turn),
            Step("commit.look", "Ordered.commit", self.look_turn),
            *self.making("Ordered.commit"),
        ]

    def read_by(self, update: int) -> int:
        return max(0, update - self.size.staleness)

    def ready(self, s: State, ticket: int) -> bool:
        return s.head >= ticket - self.size.staleness

    def wait(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].ticket
        return s if self.ready(s, ticket) or ticket >= s.total or self.orphan_before(s, ticket) else None

    def look(self, s: State, i: int) -> Outcome:
        return s if self.ready(s, s.workers[i].ticket) else self.give_up(s, i)

    def read(self, s: State, i: int) -> Outcome:
        version = self.read_by(s.workers[i].ticket)
        return self.read_version(s, i, version, version % self.slots)

    def wait_turn(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].ticket
        return s if s.head == ticket or ticket >= s.total or self.orphan_before(s, ticket) else None

    def look_turn(self, s: State, i: int) -> Outcome:
        u = s.workers[i].ticket
        if u >= s.total or s.head != u:
            return self.give_up(s, i)
        return put(s, i, base=u, slot=(u + 1) % self.slots)

    def done(self, s: State, ticket: int) -> bool:
        return s.head > ticket

    def readable(self, s: State) -> Sequence[int]:
        return range(max(0, s.head - self.size.staleness), s.head + 1)


class Sync(Model):
    """`hogwild.rules.sync`: M micro-batches on version u; whoever finds all M there makes version u + 1."""

    rule = "sync"
    after_publish = "unlock"

    def __init__(self, size: Size, faults: Sequence[str] = (), strict: bool = True) -> None:
        super().__init__(size, faults, strict)
        self.slots = 2 - ("ring" in self.faults)
        self.per_update = size.micro_batches

    def first(self) -> State:
        return super().first()._replace(gradients=((0, TORN),) * self.per_update)

    def working(self) -> list[Step]:
        return [
            Step("claim.wait", "Worker._may_start", self.wait),
            Step("claim.look", "Worker.claim", self.look),
            Step("read", "Sync.read", self.read),
            Step("gradient", "Rule.gradient", self.gradient, "gradient"),
            Step("store.begin", "Sync.commit", self.store_begin),
            Step("store.end", "Sync.commit", self.store_end, "usable"),
            Step("stamp", "Sync.commit", self.stamp, "stamp"),
            Step("complete", "Sync._complete_set", lambda s, i: self.complete(s, i, "finish")),
            Step("close", "Sync.close", lambda s, i: self.complete(s, i, "ended")),
            Step("make.lock", "Sync._complete_set", self.lock_commits, "lock commits"),
            Step("make.check", "Sync._complete_set", self.check),
            *self.making("Sync._make_version"),
            Step("unlock", "Sync._complete_set", self.unlock, "unlock commits"),
        ]

    def ready(self, s: State, i: int) -> bool:
        return s.head >= s.workers[i].ticket // self.per_update

    def wait(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].ticket
        if not self.ready(s, i) and self.is_complete(s, s.head):
            return self.complete(s, i, "claim.wait")
        return s if self.ready(s, i) or ticket >= s.total or self.orphan_before(s, ticket) else None

    def look(self, s: State, i: int) -> Outcome:
        if not self.ready(s, i) and self.is_complete(s, s.head):
            return self.complete(s, i, "claim.look")
        return s if self.ready(s, i) else self.give_up(s, i)

    def read(self, s: State, i: int) -> Outcome:
        version = s.workers[i].ticket // self.per_update
        return self.read_version(s, i, version, version % self.slots)

    def store_begin(self, s: State, i: int) -> Outcome:
        member = s.workers[i].ticket % self.per_update
        stamp = s.gradients[member][0]
        if stamp == s.head + 1 and any(w.at == "written" for w in s.workers):
            raise Violation(f"gradient slot {member} is to be written while version {stamp} is made of it")
        return s._replace(gradients=changed(s.gradients, member, (stamp, TORN)))

    def store_end(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        member = me.ticket % self.per_update
        held = (s.gradients[member][0], (me.ticket, me.version))
        return s._replace(gradients=changed(s.gradients, member, held))

    def stamp(self, s: State, i: int) -> Outcome:
        number, member = divmod(s.workers[i].ticket, self.per_update)
        return s._replace(gradients=changed(s.gradients, member, (number + 1, s.gradients[member][1])))

    def members(self, s: State, number: int) -> int:
        return min(self.per_update, s.total - number * self.per_update)

    def is_complete(self, s: State, number: int) -> bool:
        members = self.members(s, number)
        return members > 0 and all(stamp == number + 1 for stamp, _ in s.gradients[:members])

    def complete(self, s: State, i: int, back: str) -> Outcome:
        return (put(s, i, back=back), "make.lock") if self.is_complete(s, s.head) else (s, back)

    def check(self, s: State, i: int) -> Outcome:
        if not self.is_complete(s, s.head):
            return s, "unlock"
        return put(s, i, base=s.head, slot=(s.head + 1) % self.slots)

    def written(self, s: State, i: int) -> Outcome:
        number = s.workers[i].base
        wanted = [(number * self.per_update + member, number) for member in range(self.members(s, number))]
        parts = [content for _, content in s.gradients[: len(wanted)]]
        if parts != wanted:
            raise Violation(f"version {number + 1} is made of {parts}")
        return super().written(s, i)

    def row(self, s: State, i: int) -> tuple[int, int]:
        return s.workers[i].base, s.workers[i].base

    def unlock(self, s: State, i: int) -> Outcome:
        return put(s, i, back="", base=NOBODY, slot=NOBODY), s.workers[i].back

    def done(self, s: State, ticket: int) -> bool:
        number, member = divmod(ticket, self.per_update)
        return s.head > number or s.gradients[member][0] == number + 1


class Snapshot(Model):
    """`hogwild.rules.snapshot`: a slot holds (version, update that made it, version which that one read)."""

    rule = "snapshot"
    start = "attach.lock"
    after_publish = "pin"

    def __init__(self, size: Size, faults: Sequence[str] = (), strict: bool = True) -> None:
        super().__init__(size, faults, strict)
        self.slots = size.workers + 1 - ("ring" in self.faults)

    def working(self) -> list[Step]:
        return [
            Step("read", "Snapshot.read", self.read),
            Step("gradient", "Rule.gradient", self.gradient, "gradient"),
            Step("commit.lock", "Snapshot.commit", self.lock_commits, "lock commits"),
            Step("commit.target", "Snapshot._free_slot", self.target),
            *self.making("Snapshot.commit"),
            Step("pin", "Snapshot.commit", self.pin, "pin"),
            Step("unlock", "Snapshot.commit", lambda s, i: (s, "finish"), "unlock commits"),
            Step("attach.lock", "Snapshot.attach", self.lock_commits, "lock commits"),
            Step("attach.pin", "Snapshot.attach", self.attach, "pin, unlock commits"),
        ]

    def content(self, version: int, row: tuple[int, int] | None) -> object:
        return version, row

    def slot_of(self, s: State, version: int) -> int:
        return s.head_slot

    def attach(self, s: State, i: int) -> Outcome:
        return put(s, i, pin=s.head_slot, version=s.head), "claim.lock"

    def read(self, s: State, i: int) -> Outcome:
        return self.read_version(s, i, s.workers[i].version, s.workers[i].pin)

    def target(self, s: State, i: int) -> Outcome:
        if s.head >= s.total:
            return s, "unlock"
        taken = {w.pin for j, w in enumerate(s.workers) if j != i and not w.at.startswith("look")}
        free = set(range(self.slots)) - taken - {s.head_slot}
        if not free:
            raise Violation(f"no slot of {self.slots} is free: pins {sorted(taken)}, head {s.head_slot}")
        return put(s, i, slot=min(free), base=s.head)

    def pin(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        return put(s, i, pin=me.slot, version=me.base + 1)

    def done(self, s: State, ticket: int) -> bool:
        return any(row is not None and row[0] == ticket for row in s.journal[: s.head])

    def check_rows(self, s: State) -> None:
        updates = []
        for version, row in enumerate(s.journal[: s.head]):
            if row is None or not 0 <= row[1] <= version:
                raise Violation(f"row {version} of the journal is {row}")
            updates.append(row[0])
        if len(set(updates)) < len(updates):
            raise Violation(f"an update is applied twice: {updates}")


RULES = {"ordered": Ordered, "sync": Sync, "snapshot": Snapshot}
