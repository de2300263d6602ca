"""The model of `hogwild.rules.snapshot`: each worker reads the version that it pins, and makes the next one alone."""

from __future__ import annotations

from collections.abc import Sequence

from explorer import Outcome, State, Step, Violation, put
from steps import Model
from tickets import Size


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
            Step("commit.lock", "Snapshot.commit, Snapshot._free_slot", self.target, "lock commits"),
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
        if self.lock_commits(s, i) is None:
            return None
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
