"""The model of `hogwild.rules.rechecks`: some gradients are computed a second time, by somebody else where there is
one, before a version is made of them."""

from __future__ import annotations

from explorer import NOBODY, Outcome, State, Step, Violation, put
from steps import Model, changed


class Twice(Model):
    """A rule whose gradients wait in slots, which say who computed them, and whether that was done again.

    The tickets of `size.twice` are. A rule says how far its updates may be ahead of the version they read, and of how
    many tickets each is made.
    """

    staleness = 0  # τ
    per_update = 1  # M
    waiting = 1  # updates whose gradients may wait

    def read_by(self, update: int) -> int:
        return max(0, update - self.staleness)

    def place(self, ticket: int) -> int:
        number, member = divmod(ticket, self.per_update)
        return number % self.waiting * self.per_update + member

    def go_combining(self, s: State, i: int, back: str) -> Outcome:
        """A version is made of gradients that wait: its own, if it has one, is asked for no more."""
        return put(s, i, back=back, version=NOBODY, slot=NOBODY), "combine"

    def unchecked(self, s: State, number: int) -> list[int]:
        """The tickets of an update that are still to be computed a second time."""
        twice = [t for t in self.size.twice if t // self.per_update == number and t < s.total]
        return [ticket for ticket in twice if s.checked[self.place(ticket)] != number + 1]

    def named(self, s: State, i: int) -> State:
        """The slot of its ticket names worker i, and nobody else."""
        ticket = s.workers[i].ticket
        for j, w in enumerate(s.workers):
            s = put(s, j, own=tuple(t for t in w.own if t != ticket))
        return put(s, i, own=(*s.workers[i].own, ticket))

    def unnamed(self, s: State) -> State:
        """Nobody asks any more who computed what is applied."""
        for i, w in enumerate(s.workers if self.size.twice else ()):
            s = put(s, i, own=tuple(t for t in w.own if t // self.per_update >= s.head))
        return s

    # --- the steps

    def again(self) -> list[Step]:
        return [
            Step("claim.again", "Worker._claim", self.claim_again),
            Step("close.again", "Worker._close", self.close_again),
            Step("again.choose", "Rechecks.take", self.again_choose),
            Step("again.lock", "Control.take_again", self.again_lock, "lock tickets, again, unlock tickets"),
            Step("again.look", "Rechecks.take", self.again_look),
            Step("again.read", "Combining.read", self.again_read),
            Step("again.gradient", "Rule.gradient", self.gradient, "gradient"),
            Step("again.wait", "Rechecks.can_be_compared", self.again_wait),
            Step("again.decide", "Rechecks.is_there", self.again_decide),
            Step("again.compare", "Combining.compare", self.again_compare),
            Step("again.mark", "Rechecks.mark", self.again_mark, "checked"),
            Step("again.clear", "Rechecks.let_go", self.again_clear, "not again"),
        ]

    def due(self, s: State, i: int) -> int | None:
        """`Rechecks.due`"""
        me, others = s.workers[i], any(w.present for j, w in enumerate(s.workers) if j != i)
        for ticket in self.size.twice:
            number, place = ticket // self.per_update, self.place(ticket)
            if ticket >= min(s.next, s.total) or s.head < number - self.staleness:
                return None
            if me.ticket != NOBODY and ticket >= me.ticket and "any ticket" not in self.faults:
                return None
            if s.head > number or s.checked[place] == number + 1 or any(w.again == ticket for w in s.workers):
                continue
            if s.gradients[place][0] != number + 1:
                free = me.row != ticket and not self.taken_back(s, ticket)
            else:
                free = ticket not in me.own or not (others or "never alone" in self.faults)
            if free:
                return ticket
        return None

    def taken_back(self, s: State, ticket: int) -> bool:
        return bool(s.reissued) and s.reissued[0] <= ticket and "no way out" not in self.faults

    def is_there(self, s: State, ticket: int) -> bool:
        return s.gradients[self.place(ticket)][0] == ticket // self.per_update + 1

    def leaves_off(self, s: State, ticket: int) -> bool:
        return ticket >= s.total or self.taken_back(s, ticket)

    def claim_again(self, s: State, i: int) -> Outcome:
        if self.due(s, i) is None:
            return s, "claim.lock"
        return put(s, i, back="claim.again"), "again.choose"

    def close_again(self, s: State, i: int) -> Outcome:
        if self.due(s, i) is not None:
            return put(s, i, back="close.again"), "again.choose"
        own = [t for t in s.workers[i].own if t in self.unchecked(s, t // self.per_update)]
        return None if any(s.head <= t // self.per_update for t in own) else (s, "close")

    def again_choose(self, s: State, i: int) -> Outcome:
        due = self.due(s, i)
        return (put(s, i, back=""), s.workers[i].back) if due is None else put(s, i, second=due)

    def again_lock(self, s: State, i: int) -> Outcome:
        if self.lock_tickets(s, i) is None:
            return None
        me = s.workers[i]
        taken = any(w.again == me.second for w in s.workers)
        return (put(s, i, second=NOBODY, back=""), me.back) if taken else put(s, i, again=me.second)

    def again_look(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].second
        number = ticket // self.per_update
        applied = s.head > number and "slot alone" not in self.faults
        return s if ticket in self.unchecked(s, number) and not applied else (s, "again.clear")

    def again_read(self, s: State, i: int) -> Outcome:
        version = self.read_by(s.workers[i].second // self.per_update)
        return self.read_version(s, i, version, version % self.slots)

    def again_wait(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].second
        return s if self.is_there(s, ticket) or self.leaves_off(s, ticket) else None

    def again_decide(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].second
        there = self.is_there(s, ticket)
        if "asked again" in self.faults:
            there = there or not self.leaves_off(s, ticket)
        return s if there else (s, "again.clear")

    def again_compare(self, s: State, i: int) -> Outcome:
        me = s.workers[i]
        there, mine = s.gradients[self.place(me.second)][1], (me.second, me.version)
        if there != mine:
            raise Violation(f"the gradient {mine} is compared with {there}")
        return s

    def again_mark(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].second
        number = ticket // self.per_update
        if s.head > number:
            raise Violation(f"update {number} was computed again after it had been applied")
        return s._replace(checked=changed(s.checked, self.place(ticket), number + 1))

    def again_clear(self, s: State, i: int) -> Outcome:
        cleared = put(s, i, again=NOBODY, second=NOBODY)
        return self.go_combining(cleared, i, s.workers[i].back)
