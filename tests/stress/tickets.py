"""The model of `hogwild.shared.tickets`: how tickets are claimed, given back and taken again.

What every model is made of stands here too.

`faults` plants what must be found:

    "ring"           one slot too few
    "counter first"  the counter moves before the claim is recorded
    "no repair"      whoever finds a dead holder leaves its row as it is
    "head first"     the head moves before the slot is written
    "row last"       the head moves before the journal row is written
    "no hand-back"   who waits never gives a ticket up for an earlier orphan
    "no last look"   the parent asks only for tickets, not for a version that nobody is left to make
    "early stop"     the version that ends the run is published before the parent has said so
    "few gradients"  one slot for gradients too few
    "stamp first"    a gradient is said to be there before it is written
    "early shard"    a shard counts a version before it is stepped
    "shard ahead"    a shard is stepped further than the version after the newest
    "shared unlocked"  a version is said to be shared by who has not the commit lock
    "made though shared"  all of a version is made by one worker that finds it shared
    "early end"      a version is published before all its shards are stepped
    "no second look" whoever made a version does not look whether the next can be made
    "unchecked"      a version is made of a gradient that was to be computed again, and has not been
    "no way out"     who computes again waits for a gradient whose owner died, and that nobody has taken again
    "not let go"     the parent leaves in a dead worker's row what it computed again
    "any ticket"     who has a ticket computes later ones again, too
    "asked again"    who computes again compares, where it had to leave off a moment before and has to no more
    "never alone"    who computed a gradient does not compute it again, though nobody else is left
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from explorer import ENDED, NOBODY, Outcome, State, Step, put

FAULTS = (
    *("ring", "counter first", "no repair", "head first", "row last", "no hand-back", "no last look", "early stop"),
    *("few gradients", "stamp first", "early shard", "shard ahead", "early end", "no second look"),
    *("shared unlocked", "made though shared"),
    *("unchecked", "no way out", "not let go", "any ticket", "never alone", "slot alone", "asked again"),
)
_TICKET_LOCK = frozenset(
    f"{section}.{step}"
    for section in ("claim", "hand_back", "died")
    for step in ("enter", "own", "take", "leave", "none", "reissue", "settle", "finish")
)
FRESH = {"row": NOBODY, "ticket": NOBODY, "slot": NOBODY, "base": NOBODY, "piece": 0}


@dataclass(frozen=True)
class Size:
    """How large a run is explored.

    `tickets` are those of the run; `policy` is replace or continue; `look` is the version that the parent evaluates
    (0: none), and `stop` says that it ends the run there; a version is stepped in so many `shards` (0: whole),
    which are shared always, never, where somebody is idle, or before or after the first death: a matter of time, of
    which these are some. The gradients of the `twice` tickets are computed again.
    """

    workers: int
    tickets: int
    kills: int
    policy: str = "replace"
    staleness: int = 1
    micro_batches: int = 2
    look: int = 0
    stop: bool = False
    shards: int = 0
    shares: str = "always"
    twice: tuple[int, ...] = ()


class Tickets:
    """The steps about tickets. Not `strict`: wrong is only what somebody would notice, not what leads to it."""

    per_update = 1
    claims = "claim.lock"  # the first step towards a ticket
    closes = False  # a worker that finds no more tickets looks whether a version can be made

    def __init__(self, size: Size, faults: Sequence[str] = (), strict: bool = True) -> None:
        assert set(faults) <= set(FAULTS)
        self.size = size
        self.faults = frozenset(faults)
        self.strict = strict
        self._held: set[object] = set()  # what is shared, and the workers' rows, of which all holds

    def claiming(self) -> list[Step]:
        recorded = [
            Step("claim.own", "Control._own", self.own, "row"),
            Step("claim.take", "Control._take", self.take, "take"),
        ]
        if "counter first" in self.faults:
            recorded.reverse()
        return [
            Step("claim.lock", "Control.claim", self.lock_and_undo, "lock tickets"),
            Step("claim.enter", "Control._take", self.enter_and_choose, "holder"),
            *recorded,
            Step("claim.leave", "Control.claim", self.leave, "no holder, unlock tickets"),
        ]

    def leaving(self) -> list[Step]:
        return [
            Step("finish", "Control.finish", self.finish, "no row"),
            Step("hand_back.lock", "Control.hand_back", self.lock_and_undo, "lock tickets"),
            Step("hand_back.enter", "Control._enter", self.enter, "holder"),
            Step("hand_back.reissue", "Control._reissue", self.reissue, "reissue"),
            Step("hand_back.finish", "Control.finish", self.finish_in_lock, "no row"),
            Step("hand_back.leave", "Control.hand_back", self.leave_to_claim, "no holder, unlock tickets"),
            Step("claim.none", "Control.claim", self.leave_to_close, "no holder, unlock tickets"),
        ]

    def lock_tickets(self, s: State, i: int) -> Outcome:
        return None if any(w.at in _TICKET_LOCK for w in s.workers) else s

    def lock_and_undo(self, s: State, i: int) -> State | None:
        """`Control._enter`: the lock, and the repair of what a dead holder left, which only those in the lock see."""
        return None if self.lock_tickets(s, i) is None else self.undo(s, i)

    def undo(self, s: State, i: int) -> State:
        for d, dead in enumerate(s.workers):
            if dead.holder and (dead.row >= s.next or dead.row in s.reissued) and "no repair" not in self.faults:
                return put(s, d, row=NOBODY)
        return s

    def enter(self, s: State, i: int) -> State:
        return s._replace(workers=tuple(w._replace(holder=int(j == i)) for j, w in enumerate(s.workers)))

    def enter_and_choose(self, s: State, i: int) -> Outcome:
        s = self.enter(s, i)
        if s.reissued:
            return put(s, i, ticket=min(s.reissued))
        return (s, "claim.none") if s.next >= s.total else put(s, i, ticket=s.next)

    def own(self, s: State, i: int) -> Outcome:
        return put(s, i, row=s.workers[i].ticket)

    def take(self, s: State, i: int) -> Outcome:
        ticket = s.workers[i].ticket
        if ticket in s.reissued:
            return s._replace(reissued=tuple(t for t in s.reissued if t != ticket))
        return s._replace(next=ticket + 1)

    def leave(self, s: State, i: int) -> Outcome:
        return put(s, i, holder=0)

    def leave_to_claim(self, s: State, i: int) -> Outcome:
        return put(s, i, holder=0), self.claims

    def leave_to_close(self, s: State, i: int) -> Outcome:
        closes = "close.again" if self.size.twice else "close"
        return put(s, i, holder=0), closes if self.closes else ENDED

    def reissue(self, s: State, i: int) -> Outcome:
        return self.reissued(s, s.workers[i].row)

    def reissued(self, s: State, ticket: int) -> State:
        return s if ticket in s.reissued else s._replace(reissued=tuple(sorted((*s.reissued, ticket))))

    def finish(self, s: State, i: int) -> Outcome:
        return put(s, i, **FRESH), self.claims

    def finish_in_lock(self, s: State, i: int) -> Outcome:
        return put(s, i, **FRESH)

    def orphan_before(self, s: State, ticket: int) -> bool:
        return bool(s.reissued) and s.reissued[0] < ticket and "no hand-back" not in self.faults

    def give_up(self, s: State, i: int) -> Outcome:
        """`Worker._leave`, or the `commit` that returns without having applied."""
        return s, "finish" if s.workers[i].ticket >= s.total else "hand_back.lock"
