"""The model of machines that come back, as `hogwild.nodes.courier` and `hogwild.nodes.arrival` let them: see `several`.

    it comes ─▶ asks all that live ─▶ each promises: what I compute from ticket F on, you are sent
                                  ─▶ it takes a version h ≥ every F of one of them ─▶ it trains ─▶ they count on it

What one that died had sent before may still arrive, at any time after it came back, or never. `faults` plants what must
be found:

    "older version"   it takes a version that is older than what it was promised
    "not sent again"  what had left its slot for the others when the promise was made is not sent to it
    "left behind"     the others end without waiting for it
    "old head"        how far it was before it died is taken for how far it is
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from explorer import NOBODY
from several import Machine, Several, Together

RETURN_FAULTS = ("older version", "not sent again", "left behind", "old head")


class Returning(Together):
    """Machines of which some that died come back. Machine 0 lives: with it the run ends."""

    known = RETURN_FAULTS

    def moves(self, state: Any) -> Iterator[tuple[str, int, Any]]:
        """Every step, and every return."""
        yield from super().moves(state)
        for i, m in enumerate(state.workers):
            if state.returns and not m.alive and not state.workers[0].gone:
                yield "COMES BACK", i, self.comes(state, m)

    def comes(self, s: Several, m: Machine) -> Several:
        """It has met those that live; what was on its way to it is gone, and what it sent may be anywhere."""
        others = frozenset(other.node for other in s.workers if other.alive and not other.gone)
        fresh = {"slots": (NOBODY,) * self.window, "heads": (0,) * self.crowd.nodes, "living": others | {m.node}}
        kept = (one for one in s.flying if one[1] != m.node)
        flying = frozenset((by - self.crowd.nodes if by == m.node else by, to, ticket) for by, to, ticket in kept)
        return self.put(s._replace(returns=s.returns - 1, flying=flying), m, alive=True, head=0, asks=True, **fresh)

    def own_moves(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        """The steps of one that comes, and of one that is there."""
        if m.asks:
            yield from self.steps_of_coming(s, m)
            return
        yield from super().own_moves(s, m)
        for other in s.workers:
            if other.asks and m.node in other.living and m.node not in dict(other.promised):
                yield f"welcome {other.node}", self.welcome(s, m, other)
            elif other.node in m.coming and other.alive and not other.asks:
                yield f"count on {other.node}", self.count(s, m, other.node)

    # --- the one that comes

    def steps_of_coming(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        others = m.living - {m.node}
        for node in others:
            if not s.workers[node].alive or s.workers[node].gone:
                yield f"go on without {node}", self.lose(s, m, node)
        if s.workers[0].gone:
            yield "give up", self.left(s, m, gone=True)
        promised = {node: since for node, since in m.promised if node in others}
        if promised.keys() != others:
            return
        needed = max(promised.values(), default=0)
        for node in others:
            head, older = s.workers[node].head, "older version" in self.faults
            there = s.workers[node].alive and not s.workers[node].gone
            if there and (older or head >= needed == promised[node]):  # that one surely gets there
                yield f"take version {head}", self.put(s, m, head=head, next=head, asks=False, promised=frozenset())

    # --- the others

    def sent(self, m: Machine) -> int:
        """The first ticket that is not known to be there, or has yet to be copied."""
        ticket = 0
        while self.is_there(m, ticket) and ticket not in m.own:
            ticket += 1
        return ticket

    def collect(self, s: Several, m: Machine, ticket: int) -> Several:
        copied = super().collect(s, m, ticket)
        own = copied.workers[m.node]
        return self.put(copied, own, made=own.made | {ticket})

    def welcome(self, s: Several, m: Machine, other: Machine) -> Several:
        """From here on it is sent what is computed here; what it sent before it died is another machine's."""
        node, sent = other.node, self.sent(m)
        lost = self.lose(s, m, node)
        m = lost.workers[m.node]
        again = frozenset() if "not sent again" in self.faults else {(node, t) for t in m.made if t >= sent}
        head = max(sent, m.heads[node]) if "old head" in self.faults else sent
        heads = (*m.heads[:node], head, *m.heads[node + 1 :])
        told = {"outbox": m.outbox | again, "heads": heads, "coming": m.coming | {node}}
        welcomed = self.put(lost, m, made=frozenset(t for t in m.made if t >= sent), **told)
        return self.put(welcomed, other, promised=other.promised | {(m.node, sent)})

    def is_over(self, s: Several, m: Machine) -> bool:
        return super().is_over(s, m._replace(coming=frozenset()) if "left behind" in self.faults else m)

    def count(self, s: Several, m: Machine, node: int) -> Several:
        return self.put(s, m, coming=m.coming - {node}, living=m.living | {node})

    # --- messages

    def arrivals(self, s: Several, message: tuple[int, int, int]) -> Iterator[tuple[str, int, Several]]:
        """What it sent before it died arrives, or does not; what it is sent waits until it has a version."""
        sender, to, _ = message
        if sender < 0:
            yield "is lost", to, s._replace(flying=s.flying - {message})
        if not s.workers[to].asks:
            yield from super().arrivals(s, message)
