"""Which machine computes which ticket, where several train together.

Every machine makes all versions; of the gradients it computes its own and receives the others. Who computes one decides
how fast a run is, never its bits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dealing:
    """How tickets are dealt to machines.

    Attributes:
        nodes: how many machines there were when the run began.
        node: the number of this one, from 0.
        first: the number of its first worker among those of all machines.
    """

    nodes: int = 1
    node: int = 0
    first: int = 0

    @property
    def several(self) -> bool:
        """True where there are others."""
        return self.nodes > 1

    @property
    def all_living(self) -> int:
        """All machines as bits, machine 0 the lowest."""
        return (1 << self.nodes) - 1

    def dealer(self, ticket: int) -> int:
        """The machine that computes that ticket while all live."""
        return ticket % self.nodes

    def owner(self, ticket: int, living: int) -> int:
        """The machine that computes it while those of the bits `living` do: the next one, where its own does not."""
        node = self.dealer(ticket)
        while not living >> node & 1:
            node = (node + 1) % self.nodes
        return node
