"""The protocol of `hogwild.shared.tables` as data: one copy of a table, and what the last updates overwrote.

Two rows, each with a word that names the newest log entry of it. What a row holds is the version that wrote it, so that
a reader at version v must find the last one up to v that did. Under `ordered` version u + 1 is made by ticket u in its
turn, and a ticket is taken again after a death; under `snapshot` by whoever comes first, so that a version that was
begun may be made by another ticket, of other rows. The passes of `hogwild.kernels` log, name and write a few rows, here
one, before they look at the next; and where what is to be written turns out not to be finite, the version is begun
again, which puts back what was written, and nothing is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from explorer import DEAD, ENDED, NOBODY, Outcome, Protocol, State, Step, Violation, Worker, put
from steps import TORN, changed

ROWS_OF = ((0, 1), (0,), (1,), (0, 1), (1,))  # which rows each ticket touches
_WRITING = ("restore", "log", "name", "value", "valued", "publish")


class Entry(NamedTuple):
    """What a version overwrote in a row, and the word that the row had before."""

    row: int
    old: int
    before: tuple[int, int]


class Log(NamedTuple):
    """The log of one version; a reused buffer keeps the entries of an older one until they are written over."""

    version: int = 0
    entries: tuple[Entry, ...] = ()


class Tables(NamedTuple):
    """The shared words; `slots` is the table, and `made` which ticket made each version."""

    kills: int
    head: int
    slots: tuple[int, ...]
    newest: tuple[tuple[int, int], ...]  # of each row: (version, index of the entry)
    logs: tuple[Log, ...]
    made: tuple[int, ...]
    workers: tuple[Worker, ...]
    next: int = 0
    reissued: tuple[int, ...] = ()


class RowVersions:
    """The protocol at one size.

    Args:
        workers, total, staleness, kills: how many of each; total is the number of tickets.
        first_come: `snapshot` in place of `ordered`.
        by_row: a row is logged, named and written before the next.
        spoilt: tickets whose last row is not finite, by row.
        faults: what is done wrong.
    """

    def __init__(
        self,
        workers: int,
        total: int,
        staleness: int,
        kills: int = 1,
        first_come: bool = False,
        by_row: bool = False,
        spoilt: Sequence[int] = (),
        faults: Sequence[str] = (),
    ) -> None:
        self.workers, self.total, self.staleness, self.kills = workers, total, staleness, kills
        self.first_come, self.faults = first_come, frozenset(faults)
        self.by_row, self.spoilt = by_row, frozenset(spoilt)
        self.logs = staleness + 1 - ("few logs" in self.faults)

    def protocol(self) -> Protocol:
        writing = [Step("log", "RowTable.log", self.log), Step("name", "RowTable.log", self.name)]
        if "name first" in self.faults:
            writing.reverse()
        values = [
            Step("value", "SharedOptimizer.advance", self.value),
            Step("valued", "SharedOptimizer.advance", self.valued),
        ]
        writing = [*values, *writing] if "value first" in self.faults else [*writing, *values]
        look, value, word = (
            Step("read.look", "RowTable.put_back", self.look),
            Step("read.value", "RowTable.read", self.read_value),
            Step("read.word", "RowTable.put_back", self.read_word),
        )
        looking = [word, value, look] if "word first" in self.faults else [value, look, word]
        if "look first" in self.faults:
            looking = [look, value, word]
        self.first_look, self.second_look = looking[0], looking[1].name
        looking[-1] = replace(looking[-1], act=partial(self.looked, looking[-1].act))
        steps = [
            Step("claim", "Control.claim", self.claim),
            Step("wait", "Rule.ready", self.wait),
            *looking,
            Step("follow", "RowTable._put_back", self.follow),
            Step("turn", "Rule.commit", self.turn),
            Step("restore", "RowTable.begin", self.restore),
            *writing,
            Step("publish", "Rule.commit", self.publish),
            Step(DEAD, "Control.owner_died", self.again),
            Step(ENDED, "Worker.run", lambda s, i: None),
        ]
        first = Tables(
            self.kills, 0, (0, 0), ((0, 0),) * 2, (Log(),) * self.logs, (), (Worker("claim"),) * self.workers
        )
        return Protocol("row versions", tuple(steps), first, lambda s: None, self.over, self.final)

    def content(self, s: Tables, version: int, row: int) -> int:
        """The version that wrote what a row holds at that version."""
        made = enumerate(s.made[:version], 1)
        wrote = [v for v, ticket in made if ticket != NOBODY and row in ROWS_OF[ticket]]
        return wrote[-1] if wrote else 0

    # --- a ticket

    def claim(self, s: State, i: int) -> Outcome:
        if s.next >= self.total:
            return s, ENDED
        return put(s._replace(next=s.next + 1), i, row=s.next)

    def wait(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].row
        if self.first_come:
            return put(s, i, version=s.head, piece=0)
        version = max(0, ticket - self.staleness)  # it stays ready, and nobody asks for the version
        ready = s.head >= version
        return (self.first_look.act(put(s, i, version=version, piece=0), i), self.second_look) if ready else None

    def again(self, s: State, i: int) -> Outcome:
        row = s.workers[i].row
        start = "claim" if row == NOBODY else "wait"
        return put(s, i, **Worker(start, row)._asdict()), start

    # --- a row is read: its value; then, where a later version was begun, its word; then what that one overwrote

    def read_value(self, s: State, i: int) -> Outcome:
        return put(s, i, second=s.slots[s.workers[i].piece])

    def look(self, s: State, i: int) -> Outcome:
        """Where no later version was begun, no word is looked at."""
        version = s.workers[i].version
        begun = s.logs[(version + 1) % self.logs].version > version
        return s if begun else put(s, i, own=(0, 0))

    def read_word(self, s: State, i: int) -> Outcome:
        return s if s.workers[i].own == (0, 0) else put(s, i, own=s.newest[s.workers[i].piece])

    def looked(self, look: Callable[[State, int], State], s: State, i: int) -> Outcome:
        """After the last look it is known at once whether there is more to be looked at."""
        s = look(s, i)
        me = s.workers[i]
        return s if me.own[0] > me.version else self.seen(s, i, me.second)

    def follow(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        log = s.logs[me.own[0] % self.logs]
        entry = log.entries[me.own[1]] if me.own[1] < len(log.entries) else None
        if entry is None or entry.row != me.piece:
            raise Violation(f"worker {i} follows {me.own} to {entry}")
        if entry.before[0] > me.version:
            return put(s, i, own=entry.before), "follow"
        return self.seen(s, i, entry.old)

    def seen(self, s: State, i: int, value: int) -> Outcome:
        me = s.workers[i]
        if value != self.content(s, me.version, me.piece):
            raise Violation(f"worker {i} reads row {me.piece} at version {me.version} as {value}")
        more = me.piece + 1 < len(s.slots)
        if more:
            return put(s, i, piece=me.piece + 1, own=(), second=NOBODY), self.first_look.name
        kept = me.version if "pinned" in self.faults else NOBODY  # who has read lets go, or two may wait for each other
        return put(s, i, piece=0, own=(), second=NOBODY, version=kept), "turn"

    # --- a version is made: by one at a time

    def turn(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        if any(w.at in _WRITING for w in s.workers):
            return None
        if not self.first_come:
            return self.begin(put(s, i, base=s.head, piece=0), i) if s.head == me.row else None
        oldest = min((w.version for j, w in enumerate(s.workers) if j != i and w.version != NOBODY), default=s.head)
        waits = oldest < s.head + 1 - self.logs and "no wait" not in self.faults
        return None if waits else self.begin(put(s, i, base=s.head, piece=0), i)

    def begin(self, s: State, i: int) -> Outcome:
        base = s.workers[i].base
        place = (base + 1) % self.logs
        if s.logs[place].version == base + 1:
            return s
        old = s.logs[place].entries if "keep" in self.faults else ()
        return s._replace(logs=changed(s.logs, place, Log(base + 1, old))), self.first_writing()

    def first_writing(self) -> str:
        return "value" if "value first" in self.faults else "name" if "name first" in self.faults else "log"

    def restore(self, s: State, i: int) -> Outcome:
        """What was written of this version, by who died or who found that it is not to be, is put back."""
        made, table = s.workers[i].base + 1, s.slots
        entries = s.logs[made % self.logs].entries
        for k, entry in enumerate(entries):
            if s.newest[entry.row] == (made, k) and "no restore" not in self.faults:
                table = changed(table, entry.row, entry.old)
        named = max((k + 1 for k, e in enumerate(entries) if s.newest[e.row] == (made, k)), default=0)
        logs = changed(s.logs, made % self.logs, Log(made, entries[:named]))
        left_out = s.workers[i].piece == len(ROWS_OF[s.workers[i].row])
        return s._replace(slots=table, logs=logs), "publish" if left_out else self.first_writing()

    def log(self, s: State, i: int) -> Outcome:
        """All rows that this version has not named yet, or the next; or it is found that there is to be no version."""
        me = s.workers[i]
        made, rows = me.base + 1, ROWS_OF[me.row]
        if me.row in self.spoilt and me.piece + 1 == len(rows):
            return put(s, i, piece=len(rows)), "publish" if "left as it is" in self.faults else "restore"
        log, entries = s.logs[made % self.logs], s.logs[made % self.logs].entries
        for row in rows[me.piece : me.piece + 1] if self.by_row else rows:
            if s.newest[row][0] < made or "name first" in self.faults:
                entries = (*entries, Entry(row, s.slots[row], s.newest[row]))
        return s._replace(logs=changed(s.logs, made % self.logs, Log(log.version, entries)))

    def name(self, s: State, i: int) -> Outcome:
        """One row after the other."""
        made = s.workers[i].base + 1
        entries = s.logs[made % self.logs].entries
        unnamed = [(k, entry.row) for k, entry in enumerate(entries) if s.newest[entry.row][0] < made]
        if unnamed:
            k, row = unnamed[0]
            s = s._replace(newest=changed(s.newest, row, (made, k)))
        if len(unnamed) > 1:
            return s, "name"
        return s if self.by_row else put(s, i, piece=0)

    def value(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        row = ROWS_OF[me.row][me.piece]
        if s.slots[row] != self.content(s, me.base, row):
            raise Violation(f"version {me.base + 1} is made of {s.slots[row]} in row {row}")
        read = max(0, me.row - self.staleness)
        if not self.first_come and self.kept(s, row, read) != self.content(s, read, row):
            raise Violation(f"what row {row} was at version {read} is not to be found when {me.base + 1} is made")
        return s._replace(slots=changed(s.slots, row, TORN))

    def kept(self, s: Tables, row: int, version: int) -> int:
        """What a row was at that version, by the logs, where the version that is being made has named it."""
        word = s.newest[row]
        while True:
            log = s.logs[word[0] % self.logs]
            entry = log.entries[word[1]] if log.version == word[0] and word[1] < len(log.entries) else None
            if entry is None or entry.row != row:
                return NOBODY
            if entry.before[0] <= version or "base now" in self.faults:
                return entry.old
            word = entry.before

    def valued(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        row = ROWS_OF[me.row][me.piece]
        s = s._replace(slots=changed(s.slots, row, me.base + 1))
        if me.piece + 1 < len(ROWS_OF[me.row]):
            return put(s, i, piece=me.piece + 1), self.first_writing() if self.by_row else "value"
        return s

    def publish(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        left_out = me.row in self.spoilt
        made = s._replace(head=me.base + 1, made=(*s.made, NOBODY if left_out else me.row))
        return put(made, i, **Worker("claim")._asdict()), "claim"

    # --- what must hold

    def over(self, s: State) -> bool:
        return s.head == self.total and all(w.at == ENDED for w in s.workers)

    def final(self, s: State) -> None:
        for row, value in enumerate(s.slots):
            if value != self.content(s, s.head, row):
                raise Violation(f"in the end row {row} is {value}")
