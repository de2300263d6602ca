"""What the models of `ordered`, `sync` and `snapshot` share: the making of a version, the parent, what must hold.

What is abstracted: a slot holds the number of the version in it (under `snapshot` with the update that made it and
the version that one read), or TORN while it is written; the phase of a row is left out, for none of the three asks
it. What is kept: every store into a word that somebody else reads, in its order, and every look at one.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer import DEAD, ENDED, GONE, NOBODY, Outcome, Protocol, State, Step, Violation, Worker, put, with_workers
from tickets import Tickets

TORN = -2

_MAKING = frozenset({"write", "written", "journal", "publish", "pin"})
_SHOWING = frozenset(f"show.{step}" for step in ("wait", "look", "copy", "publish", "stop"))
COMMIT_LOCK = _MAKING | _SHOWING | {"attach.pin", "make.check", "make.share", "make.say", "unlock"}
_OWNING = (
    _MAKING
    | _SHOWING
    | {"claim.leave", "claim.wait", "claim.look", "claim.looked", "read", "gradient", "commit.lock"}
    | {"own.look", "own.try"}
    | {"store.begin", "store.end", "stamp", "finish"}
    | {"hand_back.lock", "hand_back.enter"}
)


def changed(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])


class Model(Tickets):
    """One rule's protocol. Not `strict`: wrong is only what somebody would notice, not what leads to it."""

    rule = ""
    start = "claim.lock"
    slots = 0
    first_of_making = "write"

    def protocol(self) -> Protocol:
        steps = [*self.claiming(), *self.working(), *self.leaving(), *self.parent()]
        title = " ".join([self.rule, str(self.size)[4:], *sorted(self.faults)])
        return Protocol(title, tuple(steps), self.first(), self.invariant, self.over, self.final)

    def first(self) -> State:
        size = self.size
        workers = (Worker(self.start),) * size.workers
        return State(
            kills=size.kills,
            total=size.tickets,
            next=0,
            head=0,
            head_slot=0,
            reissued=(),
            slots=(self.content(0, None), *[self.content(TORN, None)] * (self.slots - 1)),
            optimizer=(self.state_of(0), self.state_of(TORN)),
            journal=(None,) * self.updates(size.tickets),
            workers=(*workers, Worker("look.take", present=0)) if size.look else workers,
        )

    # --- what a rule says of itself

    def working(self) -> list[Step]:
        """From a ticket to its end."""
        raise NotImplementedError

    def done(self, s: State, ticket: int) -> bool:
        """What the rule's `settle` asks."""
        raise NotImplementedError

    def content(self, version: int, row: tuple[int, int] | None) -> object:
        """What a slot holds of that version."""
        return version

    def state_of(self, version: int) -> object:
        """What a copy of the optimizer's state holds of that version."""
        return version

    def slot_of(self, s: State, version: int) -> int:
        return version % self.slots

    def updates(self, tickets: int) -> int:
        return -(-tickets // self.per_update)

    def lock_commits(self, s: State, i: int) -> Outcome:
        return None if any(w.at in COMMIT_LOCK for w in s.workers) else s

    # --- a version is read

    def read_version(self, s: State, i: int, version: int, slot: int) -> Outcome:
        self.check_read(s, version, slot)
        return put(s, i, version=version, slot=slot)

    def gradient(self, s: State, i: int) -> Outcome:
        self.check_read(s, s.workers[i].version, s.workers[i].slot)
        return s

    def check_read(self, s: State, version: int, slot: int) -> None:
        row = s.journal[version - 1] if version else None
        if s.slots[slot] != self.content(version, row):
            raise Violation(f"version {version} is read in slot {slot}, which holds {s.slots[slot]}")

    # --- a version is made: hogwild.rules.versioned, the journal, Milestones.reach

    def making(self, publisher: str) -> list[Step]:
        steps = [
            Step("write", "Versioned.write_version", self.write, "write"),
            Step("written", "Versioned.write_version", self.written),
            Step("journal", "Journal.write, Milestones.reach", self.journal, "journal"),
            Step("show.wait", "Milestones._show", lambda s, i: s if s.evaluated == s.observed else None),
            Step("show.look", "Milestones._show", self.show_look),
            Step("show.copy", "Milestones._show", self.show_copy),
            Step("show.publish", "Milestones._show", self.show_publish),
            Step("show.stop", "Milestones._show", self.show_stop),
        ]
        names = [step.name for step in steps]
        place = "write" if "head first" in self.faults else "journal" if "row last" in self.faults else None
        self.first_of_making = "publish" if place == "write" else "write"
        head = Step("publish", publisher, self.publish, "head")
        steps.insert(names.index(place) if place else len(steps), head)
        return steps

    def write(self, s: State, i: int) -> Outcome:
        """The first byte of the next version: what it is made of must be whole, and nobody may read its slot."""
        me = s.workers[i]
        row = s.journal[me.base - 1] if me.base else None
        source = s.slots[self.slot_of(s, me.base)]
        if source != self.content(me.base, row) or s.optimizer[me.base % 2] != me.base:
            raise Violation(f"version {me.base + 1} is to be made of {source}, optimizer {s.optimizer[me.base % 2]}")
        for j, w in enumerate(s.workers):
            if j != i and w.at == "gradient" and w.slot == me.slot:
                raise Violation(f"slot {me.slot} is to be written while worker {j} reads version {w.version} there")
            if j != i and w.at == "written":
                raise Violation(f"workers {i} and {j} write the next version at once")
        optimizer = changed(s.optimizer, (me.base + 1) % 2, TORN)
        return s._replace(slots=changed(s.slots, me.slot, TORN), optimizer=optimizer)

    def written(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        made = me.base + 1
        content = self.content(made, self.row(s, i))
        return s._replace(slots=changed(s.slots, me.slot, content), optimizer=changed(s.optimizer, made % 2, made))

    def row(self, s: State, i: int) -> tuple[int, int]:
        """The journal's row of what this worker makes: (update, version read)."""
        return s.workers[i].ticket, s.workers[i].version

    def journal(self, s: State, i: int) -> Outcome:
        """And it knows whether its version is to be shown."""
        me = s.workers[i]
        s = s._replace(journal=changed(s.journal, me.base, self.row(s, i)))
        return (s, "show.wait") if me.base + 1 == self.size.look else (s, self.after_show())

    def publish(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        if s.head != me.base:
            raise Violation(f"version {me.base + 1} is published after version {s.head}")
        return s._replace(head=me.base + 1, head_slot=me.slot)

    def after_show(self) -> str:
        return "publish" if not self.faults & {"head first", "row last"} else self.after_publish

    after_publish = "finish"

    def show_look(self, s: State, i: int) -> Outcome:
        return (s, self.after_show()) if s.observed >= s.workers[i].base + 1 else s._replace(shown=TORN)

    def show_copy(self, s: State, i: int) -> Outcome:
        return s._replace(shown=s.workers[i].base + 1)

    def show_publish(self, s: State, i: int) -> Outcome:
        return s._replace(observed=s.workers[i].base + 1)

    def show_stop(self, s: State, i: int) -> Outcome:
        if not self.size.stop or "early stop" in self.faults or s.evaluated >= s.workers[i].base + 1:
            return s, self.after_show()
        return None

    # --- the parent: hogwild.workers.supervisor, hogwild.run.evaluator

    def parent(self) -> list[Step]:
        return [
            Step(ENDED, "Supervisor.supervise", self.start_again),
            Step(DEAD, "Control.owner_died", self.begin_death, "lock tickets, holder"),
            Step("died.settle", f"{self.rule.capitalize()}.settle", self.settle, "reissue"),
            Step("died.finish", "Control.owner_died", self.finish_dead, "no row, not again"),
            Step("died.leave", "Control.owner_died", self.leave, "no holder, unlock tickets"),
            Step("died.policy", "Supervisor._settle_death", self.after_death),
            Step(GONE, "Supervisor.supervise", self.start_again),
            Step("look.take", "Evaluator.look", self.look_take),
            Step("look.stop", "Evaluator.look", self.look_stop),
            Step("look.done", "Evaluator.look", self.look_done),
        ]

    def begin_death(self, s: State, i: int) -> Outcome:
        busy = any(w.at.startswith("died") or w.at in ("look.stop", "look.done") for w in s.workers)
        locked = None if busy else self.lock_and_undo(s, i)
        return locked and self.enter(locked, i)

    def settle(self, s: State, i: int) -> Outcome:
        row = s.workers[i].row
        return s if row == NOBODY or self.done(s, row) else self.reissued(s, row)

    def finish_dead(self, s: State, i: int) -> Outcome:
        """`Control.finish`, and the row says no more what the dead worker was computing again."""
        again = s.workers[i].again if "not let go" in self.faults else NOBODY
        return put(s, i, row=NOBODY, again=again, present=0)

    def after_death(self, s: State, i: int) -> Outcome:
        fresh = self.started(s, i)
        replaces = self.size.policy == "replace" and self.has_tickets(s)
        return (fresh, self.start) if replaces else (put(fresh, i, present=0), GONE)

    def started(self, s: State, i: int) -> State:
        gone = s.workers[i]
        return put(s, i, **Worker(self.start, pin=gone.pin, again=gone.again, own=gone.own)._asdict())

    def start_again(self, s: State, i: int) -> Outcome:
        if not self.nobody_runs(s) or not self.unfinished(s):
            return None
        if s.kills == self.size.kills:
            raise Violation("work is left, nobody is at it, and nobody died")
        return self.started(s, i), self.start

    def nobody_runs(self, s: State) -> bool:
        return all(w.at in (ENDED, GONE, "look.take") for w in s.workers)

    def has_tickets(self, s: State) -> bool:
        """`Supervisor._has_tickets`."""
        return s.head < self.updates(s.total) and (bool(s.reissued) or s.next < s.total)

    def unfinished(self, s: State) -> bool:
        """`Supervisor._unfinished`."""
        if self.has_tickets(s):
            return True
        return s.head < self.updates(s.total) and "no last look" not in self.faults

    def look_take(self, s: State, i: int) -> Outcome:
        if s.observed <= s.evaluated or any(w.at.startswith("died") for w in s.workers):
            return None
        if s.shown != s.observed:
            raise Violation(f"version {s.observed} is evaluated, and {s.shown} is shown")
        return s

    def look_stop(self, s: State, i: int) -> Outcome:
        if s.shown != s.observed:
            raise Violation(f"version {s.observed} is evaluated, and {s.shown} is shown")
        return s._replace(total=min(s.total, s.observed * self.per_update)) if self.size.stop else s

    def look_done(self, s: State, i: int) -> Outcome:
        return s._replace(evaluated=s.observed), "look.take"

    # --- what must hold

    def over(self, s: State) -> bool:
        return self.nobody_runs(s) and not self.unfinished(s) and s.observed == s.evaluated

    def invariant(self, s: State) -> None:
        """What stands at the head of `hogwild.shared.tickets`, and that what is published is whole."""
        again = [w.ticket for w in s.workers if w.at.startswith("again") and w.ticket != NOBODY]
        living = again + [w.ticket for w in s.workers if w.at in _OWNING]
        if len(set(living)) < len(living):
            raise Violation(f"two living workers own one ticket: {sorted(living)}")
        if self.strict:
            words = with_workers(s, ()), tuple(sorted(w.row for w in s.workers))
            if words not in self._held:  # many states have the same
                self.check_words(*words)
                self._held.add(words)

    def check_words(self, s: State, rows: tuple[int, ...]) -> None:
        """What must hold of what is shared, and of the workers' rows."""
        if len(s.reissued) > self.size.workers:
            raise Violation(f"the reissue list holds {len(s.reissued)} tickets of {self.size.workers} workers")
        ended = s.head == self.updates(s.total)  # after a stop tickets are left out on purpose
        for ticket in range(0 if ended else min(s.next, s.total)):
            if ticket not in s.reissued and ticket not in rows and not self.done(s, ticket):
                raise Violation(f"ticket {ticket} is lost: not finished, not in the list, and in nobody's row")
        self.check_rows(s)
        for version in self.readable(s):
            slot = self.slot_of(s, version)
            row = s.journal[version - 1] if version else None
            if s.slots[slot] != self.content(version, row):
                raise Violation(f"version {version}, which may still be read, is gone: its slot holds {s.slots[slot]}")

    def readable(self, s: State) -> Sequence[int]:
        """Versions that an unpublished ticket may read."""
        return [s.head]

    def check_rows(self, s: State) -> None:
        for u, row in enumerate(s.journal[: s.head]):
            if row != (u, self.read_by(u)):
                raise Violation(f"row {u} of the journal is {row}")

    def read_by(self, update: int) -> int:
        """The version that an update must be computed on."""
        return update

    def final(self, s: State) -> None:
        self.check_rows(s)
        last = self.updates(s.total)
        row = s.journal[last - 1]
        if self.size.stop and last != self.size.look:
            raise Violation(f"the run was to be stopped at version {self.size.look}, and ends at {last}")
        if s.head != last or s.optimizer[last % 2] != self.state_of(last):
            raise Violation(f"the run is over at version {s.head} of {last}, optimizer {s.optimizer}")
        if s.slots[self.slot_of(s, last)] != self.content(last, row):
            raise Violation(f"the newest version is {s.slots[self.slot_of(s, last)]}")
        if any(w.row != NOBODY for w in s.workers):
            raise Violation("the run is over, and a row still names a ticket")
        if self.size.look and s.evaluated != self.size.look:
            raise Violation(f"version {self.size.look} was never evaluated")
