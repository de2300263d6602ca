"""The courier: a process of its own on each machine that carries gradients between its slots and other machines.

    slots of this machine ── a worker's gradient ──▶ copied ──▶ every other machine
                             it rings (`hogwild.shared.bell`)
                          ◀── owned, copied, said to be there ── a gradient of another one

Invariant: it writes a slot only while its row names the ticket, which nobody else of this machine owns then, and only
after what lay there before was applied, and sent; and it says that the gradient is there after it is written whole. So
to the workers it is one more of them. A gradient that comes twice is dropped, for its bits are those of the first.

A machine that is lost owes gradients, which some of the others may have, and others not. Nobody needs to agree: who is
to compute a ticket now is a function of who lives, as each sees it, and where the next version does not come all the
same, a machine computes what it lacks itself. So a machine has a version as long as it lives itself.

A machine that comes back (`hogwild.nodes.arrival`) is first promised all gradients that are computed here from a ticket
on, and sent them; then one of those that live gives it a version that needs no earlier one. The others count on it once
it has caught up, and never wait for it before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from hogwild.errors import NodeError
from hogwild.nodes.brought import copied
from hogwild.nodes.correspondent import Correspondent
from hogwild.nodes.gloo import Mail
from hogwild.nodes.messages import NOTHING, Kind, Message
from hogwild.nodes.peer import Arrived, Back, Broken, Formed, Lost, News, Peer
from hogwild.shared.arena import as_tensor
from hogwild.shared.bell import Bell
from hogwild.shared.gradient_ring import GradientRing
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word

PAIRING = 20.0  # seconds for a machine that comes back and one that lives to be connected
_STANDING = 0.1  # seconds without a new version, after which what a lost machine owed is computed by anyone
_MOST_KEPT = 1 << 30  # bytes of gradients that are kept for one that comes back, while it cannot take them


class Courier(Correspondent):
    """Carries gradients until the run is over on every machine.

    Args:
        state: its view of the shared state, with locks.
        per_update: tickets of an update.
        mails: what messages travel by to each of the others that live.
        timeout: seconds after which a machine that says nothing is lost.
        tell: told of a machine that is, and of one that is back.
    """

    _kind = Kind.LIVES  # what it says of this machine
    _shortest, _longest = 2e-3, 8e-3  # workers ring once a gradient is there, and else every few versions

    def __init__(
        self,
        state: SharedState,
        per_update: int,
        mails: Mapping[int, Mail],
        timeout: float,
        tell: Callable[[Lost | Back], None],
    ) -> None:
        super().__init__(timeout)
        self._state = state
        self._control = control = state.control
        self._dealing = control.dealing
        self._ring = ring = GradientRing(control, state.gradients, per_update)
        control.is_there = ring.is_there
        self._per_update = per_update
        self._tell_parent = tell
        self._slot_bytes = len(state.gradients[0].bytes)
        self._seen: set[int] = set()  # tickets from SENT on whose gradients were laid down, or seen to be there
        self._held: list[Arrived] = []  # what came, and has no room yet
        self._stands = 0, self._looked  # the head, and since when
        self._peers = {node: self._peer(node, mail) for node, mail in mails.items()}

    def _peer(self, node: int, mail: Mail) -> Peer:
        return Peer(
            node,
            mail,
            self._news,
            slot_bytes=self._slot_bytes,
            window=len(self._ring.sets),
            per_update=self._per_update,
            beat=self._beat,
            kind=self._kind,
        )

    def run(self, start: int) -> None:
        """Carry until all machines have all versions; this one begins with version `start`.

        Raises:
            NodeError: another machine sent what no machine of this run sends.
        """
        self._begin(start)
        if self._control.bell is not None:
            threading.Thread(target=self._listen_to_workers, args=(self._control.bell,), daemon=True).start()
        self._correspond()
        self._part(self._control[Word.HEAD])

    def _act(self) -> bool:
        self._welcome()
        put, collected = self._put(), self._collect()
        if collected and self._held:
            put = self._put() or put
        self._tell()
        self._listen()
        self._adopt()
        return put or collected

    def connect(self, node: int, mail: Mail | None) -> None:
        """Take in a machine that comes back, which is connected by that, or cannot be; called in another thread."""
        self._news.put(Formed(node, mail))

    def _begin(self, start: int) -> None:
        """All others begin with that version too."""
        for peer in self._peers.values():
            peer.begin(self._kind, start * self._per_update, start, start)

    # --- from other machines

    def _take_news(self, news: News) -> None:
        match news:
            case Arrived():
                self._held.append(news)
            case Broken():
                self._lose(news.peer, news.why)
            case Formed():
                self._meet(news)

    def _put(self) -> bool:
        """Lay what came into the slots that are free for it."""
        held, self._held = self._held, []
        for one in held:
            ticket = one.message.first
            if not 0 <= ticket < self._control[Word.TOTAL] or self._is_free(ticket):
                self._take_in(one, ticket)
            else:
                self._held.append(one)
        return len(self._held) < len(held)

    def _is_free(self, ticket: int) -> bool:
        """True where what lay in its slot before was applied and sent."""
        sent = self._control[Word.SENT] > ticket - len(self._ring.sets) * self._per_update
        return sent and self._ring.is_free(ticket)

    def _take_in(self, one: Arrived, ticket: int) -> None:
        control = self._control
        if 0 <= ticket < control[Word.TOTAL] and control.receive(ticket):
            slot = self._ring.slot(ticket)
            if not slot.load(one.message.slot):
                raise NodeError(f"machine {one.peer.node} sent a gradient that is none of this run")
            with control.ordering():
                slot.words[GradientSlot.STAMP] = ticket // self._per_update + 1
            control.finish(control.workers)
            control.alarms.rouse(1)
            self._seen.add(ticket)
        if not one.peer.parted:
            self._free(one.peer, one.message)

    # --- to other machines

    def _listen_to_workers(self, bell: Bell) -> None:
        """Look whenever one has rung."""
        while True:
            bell.wait()
            self._news.put(None)

    def _collect(self) -> bool:
        """Copy the gradients of this machine's workers out of their slots, and send them. They have computed none from
        NEXT on."""
        control, sent = self._control, self._control[Word.SENT]
        end = (control.observe(Word.HEAD) + len(self._ring.sets)) * self._per_update
        end = min(end, control[Word.NEXT], control[Word.TOTAL])
        own = self._ring.waiting([ticket for ticket in range(sent, end) if ticket not in self._seen])
        for ticket in own:
            self._seen.add(ticket)
            self._send(ticket, self._peers.values())
        first = sent
        while sent in self._seen:
            self._seen.remove(sent)
            sent += 1
        if sent > first:
            control.publish(Word.SENT, sent)
        return bool(own)

    def _send(self, ticket: int, peers: Iterable[Peer]) -> None:
        slot = self._ring.slot(ticket)
        if slot.words[GradientSlot.WORKER] not in self._control.numbers:
            return
        message = Message(self._slot_bytes)
        message.slot.copy_(as_tensor(slot.bytes))
        message.say(ticket, self._control[Word.HEAD])
        living = self._control[Word.LIVING]
        for peer in peers:
            if peer.sent_to:
                peer.send(ticket, message)
                if not living >> peer.node & 1 and peer.backlog > _MOST_KEPT:
                    self._lose(peer, "it came back, and does not keep up with the others")

    def _tell(self) -> None:
        """Tell the head to whom no gradient has told it: often enough that nobody waits for room, and at the end."""
        head, ends = self._control.observe(Word.HEAD), self._has_all()
        for peer in self._peers.values():
            if head >= peer.told + self._ring.told_every or (ends and head > peer.told):
                peer.tell(self._kind, head)

    # --- who lives

    def _lose(self, peer: Peer, why: str) -> None:
        if peer.parted:
            return
        peer.part()
        if peer.head * self._per_update >= self._control[Word.TOTAL]:  # it has ended
            return
        control = self._control
        control.publish(Word.LIVING, control[Word.LIVING] & ~(1 << peer.node))
        self._tell_parent(Lost(peer.node, why))

    def _meet(self, formed: Formed) -> None:
        """A machine that comes back is connected; whoever had its number before is heard no more."""
        if formed.mail is None:
            self._tell_parent(Lost(formed.node, "it was lost again before it was connected"))
            return
        if (before := self._peers.get(formed.node)) is not None:
            self._lose(before, "it comes back")
        self._peers[formed.node] = peer = self._peer(formed.node, formed.mail)
        peer.heard += PAIRING  # it speaks once it is connected to all

    def _welcome(self) -> None:
        """Let machines in that come back: promise, give a version, count on them."""
        self._hurries = False
        for peer in self._peers.values():
            if peer.parted or peer.said is None:
                continue
            if peer.since == NOTHING:
                self._promise(peer)
            if peer.said.wanted != NOTHING and not peer.given:
                brought = copied(self._state, peer.said.wanted)
                if brought is not None:
                    peer.give(brought)
                elif self._control.observe(Word.HEAD) >= peer.said.wanted:  # the next is made, as at most looks
                    self._hurries = True
            living = self._control[Word.LIVING]
            if peer.has_come and not living >> peer.node & 1:
                self._control.publish(Word.LIVING, living | 1 << peer.node)
                self._tell_parent(Back(peer.node))

    def _promise(self, peer: Peer) -> None:
        """From the first ticket on that has yet to leave its slot it gets all that is computed here; of later ones what
        has left already still lies in their slots."""
        control = self._control
        sent = control[Word.SENT]
        peer.begin(self._kind, sent, control.observe(Word.HEAD), sent // self._per_update)
        for ticket in sorted(self._seen):
            self._send(ticket, [peer])

    def _adopt(self) -> None:
        """Let this machine compute what lost ones owed: what is its own to compute now, and, where the head stands
        still, whatever the next version lacks; also of a machine that lives, and brings nothing in all the time after
        which one that says nothing is lost."""
        control, dealing, now = self._control, self._dealing, time.monotonic()
        head = control.observe(Word.HEAD)
        if head != self._stands[0]:
            self._stands = head, now
        standing, living = now - self._stands[1], control[Word.LIVING]
        if living == dealing.all_living and standing < self._timeout:
            return
        first = head * self._per_update
        for ticket in range(first, min(control[Word.NEXT], (head + len(self._ring.sets)) * self._per_update)):
            of_next = ticket < first + self._per_update
            if living >> dealing.dealer(ticket) & 1:
                wanted = of_next and standing >= self._timeout
            else:
                wanted = dealing.owner(ticket, living) == dealing.node or (of_next and standing >= _STANDING)
            if wanted and not self._ring.waits(ticket):
                control.adopt(ticket)

    # --- the end

    def _has_all(self) -> bool:
        return self._control.observe(Word.HEAD) * self._per_update >= self._control[Word.TOTAL]

    def _is_over(self) -> bool:
        """True once this machine has all versions, and knows that the others have."""
        if not self._has_all():
            return False
        total = self._control[Word.TOTAL]
        return all(not peer.sent_to or peer.head * self._per_update >= total for peer in self._peers.values())
