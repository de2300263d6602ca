"""The courier of a machine that comes back, until it is as far as the others.

    it                                       each that lives
    “I come” ──────────────────────────────▶ promises: from ticket F on you are sent all that I compute
    all have promised; the largest F: ─────▶ who promised that makes version F, if it has not, and sends it a version
    it begins with that version              … which they have been making all the time
    it has caught up, and its workers are there: “I live” ─▶ counts on it

Invariant: of every gradient that it lacks, for any version after the one it begins with, either its sender is still
going to send it, or its sender is lost, and it computes it itself, as anyone does. Whoever promised F has, or will get,
all gradients before F, so the version that it waits for will be there.
"""

from __future__ import annotations

from hogwild.errors import NodeError
from hogwild.nodes.brought import Brought, brought_bytes, lay_down
from hogwild.nodes.courier import Courier
from hogwild.nodes.messages import NOTHING, Kind
from hogwild.nodes.peer import News
from hogwild.shared.words import Word

_LOOK_EVERY = 5e-3  # seconds


class ArrivingCourier(Courier):
    """A courier that begins with a version of another machine: first `arrive`, then `run`."""

    _kind = Kind.COMES
    _brought: Brought | None = None

    def arrive(self) -> Brought:
        """Get a version, and lay it down where the run begins.

        Raises:
            NodeError: none of the others is left, or what came is no version of this run.
        """
        while self._brought is None:
            self._hear(_LOOK_EVERY)
            self._listen()
            self._ask()
        brought, control = self._brought, self._control
        if not 0 < brought.total <= self._state.plan.rows * self._per_update:
            raise NodeError(f"a version was brought of a run of {brought.total} tickets, and this one has others")
        lay_down(self._state, brought)
        control.prepare(brought.version * self._per_update, brought.total)
        control[Word.HEAD] = brought.version
        living = [self._dealing.node, *(peer.node for peer in self._peers.values() if not peer.parted)]
        control.publish(Word.LIVING, sum(1 << node for node in living))
        return brought

    def _take_news(self, news: News) -> None:
        if isinstance(news, Brought):
            self._brought = news
        else:
            super()._take_news(news)

    def _ask(self) -> None:
        """Ask for a version, once all that live have promised; another one, where that is lost."""
        living = [peer for peer in self._peers.values() if not peer.parted]
        if not living:
            raise NodeError("no machine is left that it could come back to")
        promised = {peer: NOTHING if peer.said is None else peer.said.since for peer in living}
        if NOTHING in promised.values() or any(peer.wanted != NOTHING for peer in living):
            return
        asked = max(living, key=lambda peer: promised[peer])
        asked.ask(-(-promised[asked] // self._per_update), self._size_of)

    def _size_of(self, version: int) -> int:
        return brought_bytes(self._state, version) if version <= self._state.plan.rows else 0

    def _begin(self, start: int) -> None:
        """Send the others what is computed here; how far they are they say."""
        self._first = start * self._per_update
        for peer in self._peers.values():
            peer.begin(self._kind, self._first, start, 0)

    def _welcome(self) -> None:
        """Besides, tell the others once this machine has caught up, and a worker has asked for a ticket."""
        super()._welcome()
        if self._kind is Kind.LIVES or self._control[Word.NEXT] == self._first:
            return
        head, others = self._control.observe(Word.HEAD), [peer for peer in self._peers.values() if not peer.parted]
        if head + len(self._ring.sets) // 2 >= max((peer.head for peer in others), default=0):
            self._kind = Kind.LIVES
            for peer in others:
                peer.tell(self._kind, head)
