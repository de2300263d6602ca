"""Which machine computes which ticket, where several train together, and when those that train apart average.

Together every machine makes all versions; of the gradients it computes its own and receives the others. Who computes
one decides how fast a run is, never its bits. Apart each machine has tickets and versions of its own, from 0 on, and
its ticket t is the N t + n-th of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_PARTS = 4  # speeds are rounded to such a part of the highest
_MOST_PARTS = 64  # or to a smaller one, for slower machines, and no smaller than that


@dataclass(frozen=True)
class Averages:
    """When machines that train apart average, and what becomes of the mean.

    Attributes:
        every: so many updates of each, and once after the last.
        rate, momentum: of the outer steps; None: the mean is taken as it is.
    """

    every: int
    rate: float | None = None
    momentum: float = 0.0

    def before(self, update: int) -> int:
        """The last averaged version that there is once an update may begin; 0: none."""
        return update // self.every * self.every

    def from_or_after(self, version: int) -> int:
        """That version if it is averaged in the middle of a run, or the next that is."""
        return -(-version // self.every) * self.every

    def are_at(self, version: int, last: int) -> bool:
        """True where that version is averaged, in a run that ends with version `last`."""
        return version > 0 and (version % self.every == 0 or version == last)


@dataclass(frozen=True)
class Dealing:
    """How tickets are dealt to machines.

    Attributes:
        nodes: how many machines there were when the run began.
        node: the number of this one, from 0.
        first: the number of its first worker among those of all machines.
        averages: where each machine trains apart; None: they train together.
        turns: the machines in the order in which tickets are dealt to them, over and over; empty: one after the other.
    """

    nodes: int = 1
    node: int = 0
    first: int = 0
    averages: Averages | None = None
    turns: tuple[int, ...] = ()

    @property
    def several(self) -> bool:
        """True where there are others, who compute gradients of the same updates."""
        return self.nodes > 1 and self.averages is None

    def of_all(self, number: int) -> int:
        """What a ticket or a batch of this machine's own is among those of all machines."""
        return number if self.averages is None else number * self.nodes + self.node

    @property
    def all_living(self) -> int:
        """All machines as bits, machine 0 the lowest."""
        return (1 << self.nodes) - 1

    def dealer(self, ticket: int) -> int:
        """The machine that computes that ticket while all live."""
        return self.turns[ticket % len(self.turns)] if self.turns else ticket % self.nodes

    def checker(self, ticket: int) -> int:
        """The machine that computes that ticket a second time, where it is a chosen one: not the one that computes it
        first while all live, where there is another."""
        return (self.dealer(ticket) + 1) % self.nodes if self.several else self.node

    def owner(self, ticket: int, living: int) -> int:
        """The machine that computes it while those of the bits `living` do: the next one, where its own does not."""
        node = self.dealer(ticket)
        while not living >> node & 1:
            node = (node + 1) % self.nodes
        return node


def turns_of(speeds: Sequence[float]) -> tuple[int, ...]:
    """The order in which machines of those speeds are dealt tickets: each as often as it is fast, and evenly spread.

    Speeds are rounded to quarters of the highest, so that machines which are hardly unequal are dealt alike; where one
    is slower than a quarter, to its own, or to a 64th of the highest.
    """
    highest, lowest = max(speeds), min(speeds)
    unit = min(highest / _PARTS, max(lowest, highest / _MOST_PARTS))
    shares = [max(1, round(speed / unit)) for speed in speeds]
    shares = [share // math.gcd(*shares) for share in shares]
    owed, turns = [0] * len(shares), []
    for _ in range(sum(shares)):
        owed = [before + share for before, share in zip(owed, shares, strict=True)]
        turns.append(owed.index(max(owed)))
        owed[turns[-1]] -= sum(shares)
    return tuple(turns)
