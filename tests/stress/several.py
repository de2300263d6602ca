"""The model of `hogwild.nodes.courier`, and of what it asks of `hogwild.shared.tickets`: machines with a worker each.

A machine is one actor that may take any step it can: what its worker, its courier and the network do interleave freely.
Messages between two machines arrive in any order; those of a machine that died arrive or do not. Steps inside a machine
are explored in `protocols`; here each is whole. Where no slot is used twice, it says nothing when a gradient is copied
out of one, and how far another machine is matters only in the end; so much is left out then.

`faults` plants what must be found:

    "no adoption"     nobody computes what a dead machine owed
    "owner alone"     only the machine that would own it now does
    "claims all"      a worker claims a ticket of its own whose gradient has come from another machine meanwhile
    "late copy"       the courier lays down a gradient that is there already, or was applied
    "no room asked"   a gradient is sent, and laid down, without asking whether its slot is free
    "not sent first"  a slot is used again before what lay in it has been sent
    "sent to living"  a machine that has all versions leaves without waiting for the others
    "waits for other" what another machine computes is computed again before its gradient has come
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from explorer import NOBODY, Protocol, Violation

FAULTS = (
    *("no adoption", "owner alone", "claims all", "late copy", "no room asked", "not sent first", "sent to living"),
    "waits for other",
)


class Machine(NamedTuple):
    """One machine. A slot holds the ticket whose gradient is there, or was; `heads` and `living` are what it knows of
    the others; `outbox` what it has yet to send, (to, ticket)."""

    node: int
    alive: bool
    gone: bool  # it has ended
    head: int
    next: int
    slots: tuple[int, ...]
    own: frozenset[int]  # tickets in the slots that were computed here, and are not yet copied
    held: int  # the ticket of its worker
    reissued: frozenset[int]
    heads: tuple[int, ...]
    living: frozenset[int]
    outbox: frozenset[tuple[int, int]]
    shows: bool = False  # its worker has made the version at which the run may end, and waits for what is decided
    second: int = NOBODY  # the ticket that its worker computes again
    checked: frozenset[int] = frozenset()  # those whose two computations were found equal here
    coming: frozenset[int] = frozenset()  # machines that come back, which are sent what those that live are
    made: frozenset[int] = frozenset()  # tickets from SENT on that were computed here, and copied
    asks: bool = False  # it comes back, and has no version yet
    promised: frozenset[tuple[int, int]] = frozenset()  # (who, from which ticket on it is sent all): what it was told

    @property
    def peers(self) -> frozenset[int]:
        """Whom it sends what it computes."""
        return (self.living | self.coming) - {self.node}


class Several(NamedTuple):
    """All machines, and the messages on their way: (from, to, ticket)."""

    kills: int
    workers: tuple[Machine, ...]
    flying: frozenset[tuple[int, int, int]]
    decided: bool = False  # machine 0 has looked at the version at which the run may end
    returns: int = 0  # how often one that died may still come back


@dataclass(frozen=True)
class Crowd:
    """How large a run is explored: machines, updates, machines that die, τ."""

    nodes: int
    updates: int
    kills: int
    staleness: int = 1
    mortal: tuple[int, ...] = (0, 1, 2)  # the machines that may die
    decides: int = 0  # the version at which machine 0 decides whether the run ends; 0: there is none
    again: tuple[int, ...] = ()  # tickets that the machine after the one that owes them computes a second time
    returns: int = 0  # how often one that died comes back
    turns: tuple[int, ...] = ()  # the machines in the order in which tickets are dealt; else each in turn

    def dealer(self, ticket: int) -> int:
        return self.turns[ticket % len(self.turns)] if self.turns else ticket % self.nodes

    def computed_again_by(self, node: int) -> tuple[int, ...]:
        return tuple(ticket for ticket in self.again if (self.dealer(ticket) + 1) % self.nodes == node)

    @property
    def window(self) -> int:
        """Updates whose gradients may wait."""
        return 2 * self.staleness + 2

    @property
    def short(self) -> bool:
        """True where no slot is used twice."""
        return self.updates <= self.window


class Together(Protocol):
    """The protocol, with any step of any machine as a move."""

    known: ClassVar[tuple[str, ...]] = FAULTS

    def __init__(self, crowd: Crowd, faults: tuple[str, ...] = ()) -> None:
        assert set(faults) <= set(self.known)
        window = crowd.window
        everybody = frozenset(range(crowd.nodes))
        machines = tuple(
            Machine(
                *(node, True, False, 0, 0, (NOBODY,) * window, frozenset(), NOBODY, frozenset()),
                *((0,) * crowd.nodes, everybody, frozenset()),
            )
            for node in range(crowd.nodes)
        )
        first: Any = Several(crowd.kills, machines, frozenset(), returns=crowd.returns)
        super().__init__(f"{crowd}", (), first, lambda s: None, self._over, lambda s: None)
        object.__setattr__(self, "crowd", crowd)
        object.__setattr__(self, "faults", frozenset(faults))
        object.__setattr__(self, "window", window)

    # --- what the explorer asks

    def _over(self, s: Several) -> bool:
        return all(m.gone or not m.alive for m in s.workers)

    def after(self, state: Any, i: int) -> Any:
        """Nothing is said of one next step."""

    def line(self, name: str, i: int, state: Any) -> str:
        """What a trace shows."""
        m = state.workers[i]
        return f"  machine {i}  {name:24} head {m.head}, next {m.next}, slots {list(m.slots)}, holds {m.held}"

    def moves(self, state: Any) -> Iterator[tuple[str, int, Any]]:
        """Every step that can be taken."""
        for i, m in enumerate(state.workers):
            if not m.alive or m.gone:
                continue
            for name, after in self.own_moves(state, m):
                yield name, i, after
            if state.kills and i in self.crowd.mortal:
                yield "KILLED", i, self.left(state._replace(kills=state.kills - 1), m, alive=False)
        for message in state.flying:
            yield from self.arrivals(state, message)

    # --- a machine

    def put(self, s: Several, m: Machine, **changes: Any) -> Several:
        machines = list(s.workers)
        machines[m.node] = m._replace(**changes)
        return s._replace(workers=tuple(machines))

    def left(self, s: Several, m: Machine, **how: bool) -> Several:
        """It is dead or gone: what it remembered is forgotten, so that states that can do the same are one state."""
        empty = frozenset[Any]()
        memory = {"next": 0, "slots": (), "own": empty, "held": NOBODY, "reissued": empty, "heads": (), "outbox": empty}
        doing = {"shows": False, "second": NOBODY, "checked": empty}
        coming = {"coming": empty, "made": empty, "asks": False, "promised": empty}
        return self.put(s, m, **how, **memory, **doing, **coming, living=empty)

    def owner(self, ticket: int, living: frozenset[int]) -> int:
        node = self.crowd.dealer(ticket)
        while node not in living:
            node = (node + 1) % self.crowd.nodes
        return node

    def is_there(self, m: Machine, ticket: int) -> bool:
        return m.slots[ticket % self.window] == ticket or m.head > ticket

    def is_free(self, m: Machine, ticket: int) -> bool:
        before = m.slots[ticket % self.window]
        sent = before not in m.own or "not sent first" in self.faults
        return ticket < m.head + self.window and sent

    def own_moves(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        if m.second != NOBODY:
            yield from self.compare(s, m)
        elif m.shows:
            if s.decided:
                yield "publish", self.put(s, m, head=m.head + 1, shows=False)
        else:
            yield from self.workers_moves(s, m)
        for ticket in m.own:
            yield "collect", self.collect(s, m, ticket)
        yield from self.send(s, m)
        yield from self.others(s, m)
        if self.is_over(s, m):
            yield "end", self.left(s, m, gone=True)

    def workers_moves(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        """What a worker does that waits for nothing but a version."""
        if m.held == NOBODY and m.reissued:
            ticket = min(m.reissued)
            yield "claim again", self.put(s, m, held=ticket, reissued=m.reissued - {ticket})
        elif m.held == NOBODY and m.next < self.crowd.updates:
            yield "claim", self.claim(s, m)
        elif m.held != NOBODY:
            yield from self.work(s, m)
        again = self.crowd.computed_again_by(m.node)
        for ticket in again:
            if self.is_due(m, ticket):
                yield f"take {ticket} again", self.put(s, m, second=ticket)
        checked = m.head not in again or m.head in m.checked
        if m.head < self.crowd.updates and m.slots[m.head % self.window] == m.head and checked:
            if m.head + 1 == self.crowd.decides:
                yield "show", self.put(s._replace(decided=s.decided or m.node == 0), m, shows=True)
            else:
                yield "make version", self.put(s, m, head=m.head + 1)

    def is_due(self, m: Machine, ticket: int) -> bool:
        """A chosen ticket that is handed out, of an update that has yet to be applied and whose version is there."""
        handed_out = m.head <= ticket < min(m.next, m.head + self.crowd.staleness + 1)
        if not handed_out or ticket in m.checked or not (m.held == NOBODY or ticket < m.held):
            return False
        if m.slots[ticket % self.window] == ticket:
            return True
        return "waits for other" in self.faults and ticket not in m.reissued and self.crowd.dealer(ticket) != m.node

    def compare(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        if m.slots[m.second % self.window] == m.second:
            yield f"compare {m.second}", self.put(s, m, second=NOBODY, checked=m.checked | {m.second})
        elif any(ticket <= m.second for ticket in m.reissued):
            yield f"leave off {m.second}", self.put(s, m, second=NOBODY)

    def claim(self, s: Several, m: Machine) -> Several:
        ticket = m.next
        while ticket < self.crowd.updates:
            there = self.is_there(m, ticket) and "claims all" not in self.faults
            if self.owner(ticket, m.living) == m.node and not there:
                return self.put(s, m, held=ticket, next=ticket + 1)
            ticket += 1
        return self.put(s, m, next=ticket)

    def work(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        """Compute and lay down, or give the ticket up for a lower one."""
        ticket, staleness = m.held, self.crowd.staleness
        if m.reissued and min(m.reissued) < ticket and m.head < ticket - staleness:
            yield "hand back", self.put(s, m, held=NOBODY, reissued=m.reissued | {ticket})
        if m.head < ticket - staleness or not (self.is_free(m, ticket) or "claims all" in self.faults):
            return
        if m.head > ticket:
            raise Violation(f"machine {m.node} reads version {max(0, ticket - staleness)} with head {m.head}")
        stored = self.lay(s, m, ticket)
        own = stored.workers[m.node]
        computed = self.put(stored, own, held=NOBODY, own=own.own | {ticket})
        yield "compute", self.collect(computed, computed.workers[m.node], ticket) if self.crowd.short else computed

    def lay(self, s: Several, m: Machine, ticket: int) -> Several:
        place = ticket % self.window
        before = m.slots[place]
        if before >= m.head or ticket < m.head:
            raise Violation(f"machine {m.node} lays {ticket} over {before} with head {m.head}")
        if before in m.own:
            raise Violation(f"machine {m.node} lays {ticket} over {before}, which it has not sent")
        return self.put(s, m, slots=(*m.slots[:place], ticket, *m.slots[place + 1 :]))

    def collect(self, s: Several, m: Machine, ticket: int) -> Several:
        to = {(node, ticket) for node in m.peers}
        return self.put(s, m, own=m.own - {ticket}, outbox=m.outbox | to)

    def send(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        for node in sorted({to for to, _ in m.outbox}):
            ticket = min(t for to, t in m.outbox if to == node)
            sent = self.put(s, m, outbox=m.outbox - {(node, ticket)})
            if ticket < m.heads[node]:
                yield "drop", sent
            elif ticket < m.heads[node] + self.window or "no room asked" in self.faults:
                yield f"send {ticket} to {node}", sent._replace(flying=s.flying | {(m.node, node, ticket)})

    def others(self, s: Several, m: Machine) -> Iterator[tuple[str, Several]]:
        """Hear how far another is, notice its death, and take over what it owed."""
        for other in s.workers:
            if other.node not in m.peers:
                continue
            if not other.alive:
                yield f"lose {other.node}", self.lose(s, m, other.node)
            elif other.head > m.heads[other.node] and (not self.crowd.short or other.head == self.crowd.updates):
                heads = (*m.heads[: other.node], other.head, *m.heads[other.node + 1 :])
                yield f"hear of {other.node}", self.put(s, m, heads=heads)
        for ticket in range(m.head, min(m.next, m.head + self.crowd.staleness + 1)):
            if self.may_adopt(m, ticket):
                yield f"adopt {ticket}", self.put(s, m, reissued=m.reissued | {ticket})

    def lose(self, s: Several, m: Machine, node: int) -> Several:
        away = frozenset(one for one in m.outbox if one[0] != node)
        return self.put(s, m, living=m.living - {node}, coming=m.coming - {node}, outbox=away)

    def may_adopt(self, m: Machine, ticket: int) -> bool:
        if "no adoption" in self.faults or self.crowd.dealer(ticket) in m.living:
            return False
        if "owner alone" in self.faults and self.owner(ticket, m.living) != m.node:
            return False
        return m.held != ticket and ticket not in m.reissued and not self.is_there(m, ticket)

    def is_over(self, s: Several, m: Machine) -> bool:
        """It has all versions, and knows that the others have: what they say last comes before they leave."""
        updates = self.crowd.updates
        if m.head < updates:
            return False
        others = [s.workers[node] for node in m.peers]
        known = all(m.heads[other.node] >= updates or other.gone for other in others)
        return known or "sent to living" in self.faults

    # --- messages

    def arrivals(self, s: Several, message: tuple[int, int, int]) -> Iterator[tuple[str, int, Several]]:
        sender, to, ticket = message
        m, rest = s.workers[to], s._replace(flying=s.flying - {message})
        if not m.alive or m.gone or not s.workers[sender].alive:
            yield "KILLED", to, rest  # it never arrives; nobody can count on that
        if not m.alive or m.gone:
            return
        owned = m.held == ticket or (self.is_there(m, ticket) and "late copy" not in self.faults)
        if owned:
            yield f"drop {ticket} from {sender}", to, rest
        elif self.is_free(m, ticket) or "no room asked" in self.faults or "late copy" in self.faults:
            laid = self.lay(rest, m, ticket)
            mine = laid.workers[to]
            yield f"put {ticket} from {sender}", to, self.put(laid, mine, reissued=mine.reissued - {ticket})
