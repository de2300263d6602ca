"""The courier: a process of its own on each machine that carries gradients between its slots and other machines.

    slots of this machine ── a worker's gradient ──▶ copied ──▶ every other machine
                          ◀── owned, copied, said to be there ── a gradient of another one

Invariant: it writes a slot only while its row names the ticket, which nobody else of this machine owns then, and only
after what lay there before was applied, and sent; and it says that the gradient is there after it is written whole. So
to the workers it is one more of them. A gradient that comes twice is dropped, for its bits are those of the first.

A machine that is lost owes gradients, which some of the others may have, and others not. Nobody needs to agree: who is
to compute a ticket now is a function of who lives, as each sees it, and where the next version does not come all the
same, a machine computes what it lacks itself. So a machine has a version as long as it lives itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from hogwild.errors import NodeError
from hogwild.nodes.gloo import Mail
from hogwild.nodes.messages import HEADER_BYTES, Kind, first_of, new_message, slot_in, write_header
from hogwild.nodes.peer import Arrived, Lost, News, Peer
from hogwild.shared.arena import as_tensor
from hogwild.shared.gradient_ring import GradientRing
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word

_SHORTEST, _LONGEST = 50e-6, 2e-3  # seconds between two looks at the slots
_STANDING = 0.1  # seconds without a new version, after which what a lost machine owed is computed by anyone
_LINGERING = 2.0  # seconds for the others to say that they are done, once this machine is
_BEATS = 5  # words within the time after which a machine that says nothing is lost


class Courier:
    """Carries gradients until the run is over on every machine.

    Args:
        state: its view of the shared state, with locks.
        start: the version that all machines begin with.
        per_update: tickets of an update.
        mail: what messages travel by.
        timeout: seconds after which a machine that says nothing is lost.
        lost: told of a machine that is, and why.
    """

    def __init__(
        self,
        state: SharedState,
        start: int,
        per_update: int,
        mail: Mail,
        timeout: float,
        lost: Callable[[Lost], None],
    ) -> None:
        self._control = control = state.control
        self._dealing = control.dealing
        self._ring = ring = GradientRing(control, state.gradients, per_update)
        control.is_there = ring.is_there
        self._per_update = per_update
        self._timeout = timeout
        self._lost = lost
        self._workers = range(self._dealing.first, self._dealing.first + control.workers)
        self._slot_bytes = len(state.gradients[0].bytes)
        self._seen: set[int] = set()  # tickets from SENT on whose gradients were laid down, or seen to be there
        self._held: list[Arrived] = []  # what came, and has no room yet
        self._news: SimpleQueue[News] = SimpleQueue()
        self._looked = time.monotonic()
        self._stands = start, self._looked  # the head, and since when
        self._peers = {
            node: Peer(
                node,
                mail,
                self._news,
                slot_bytes=self._slot_bytes,
                window=len(ring.sets),
                per_update=per_update,
                beat=timeout / _BEATS,
                head=start,
            )
            for node in range(self._dealing.nodes)
            if node != self._dealing.node
        }

    def run(self) -> None:
        """Carry until all machines have all versions.

        Raises:
            NodeError: another machine sent what no machine of this run sends.
        """
        pause = _SHORTEST
        while not self._is_over():
            self._hear(pause)
            put, collected = self._put(), self._collect()
            self._tell()
            self._listen()
            self._adopt()
            pause = _SHORTEST if put or collected else min(2 * pause, _LONGEST)
        self._part()

    # --- from other machines

    def _hear(self, timeout: float) -> None:
        """Take what has come, waiting so long for the first."""
        try:
            while True:
                news = self._news.get(timeout=timeout)
                timeout = 0
                if isinstance(news, Arrived):
                    self._held.append(news)
                elif isinstance(news, Lost):
                    self._lose(news)
        except Empty:
            return

    def _put(self) -> bool:
        """Lay what came into the slots that are free for it."""
        held, self._held = self._held, []
        for one in held:
            ticket = first_of(one.message)
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
            if not slot.load(slot_in(one.message)):
                raise NodeError(f"machine {one.node} sent a gradient that is none of this run")
            with control.ordering():
                slot.words[GradientSlot.STAMP] = ticket // self._per_update + 1
            control.finish(control.workers)
            self._seen.add(ticket)
        peer = self._peers[one.node]
        if not peer.parted:
            try:
                peer.free(one.message)
            except ConnectionError as error:
                self._lose(Lost(one.node, str(error)))

    # --- to other machines

    def _collect(self) -> bool:
        """Copy the gradients of this machine's workers out of their slots, and send them. They have computed none from
        NEXT on."""
        control, sent = self._control, self._control[Word.SENT]
        end = (control.observe(Word.HEAD) + len(self._ring.sets)) * self._per_update
        found = False
        for ticket in range(sent, min(end, control[Word.NEXT], control[Word.TOTAL])):
            if ticket not in self._seen and self._ring.waits(ticket):
                self._seen.add(ticket)
                self._send(ticket)
                found = True
        first = sent
        while sent in self._seen:
            self._seen.remove(sent)
            sent += 1
        if sent > first:
            control.publish(Word.SENT, sent)
        return found

    def _send(self, ticket: int) -> None:
        slot = self._ring.slot(ticket)
        if slot.words[GradientSlot.WORKER] not in self._workers:
            return
        message = new_message(self._slot_bytes)
        message[HEADER_BYTES:].copy_(as_tensor(slot.bytes))
        write_header(message, ticket, self._control[Word.HEAD])
        for peer in self._peers.values():
            if not peer.parted:
                peer.send(ticket, message)

    def _tell(self) -> None:
        """Tell the head to whom no gradient has told it: often enough that nobody waits for room, and at the end."""
        head, ends = self._control.observe(Word.HEAD), self._has_all()
        often = max(1, len(self._ring.sets) // 3)
        for peer in self._peers.values():
            if head >= peer.told + often or (ends and head > peer.told):
                peer.tell(Kind.LIVES, head)

    # --- who lives

    def _listen(self) -> None:
        """Look whether somebody has said nothing for too long; not right after this machine itself stood still."""
        now = time.monotonic()
        stood_still, self._looked = now - self._looked > self._timeout / 2, now
        for peer in self._peers.values():
            if stood_still:
                peer.heard = now
            elif not peer.parted and now - peer.heard > self._timeout:
                self._lose(Lost(peer.node, f"it has said nothing for {self._timeout:g} s"))

    def _lose(self, lost: Lost) -> None:
        peer = self._peers[lost.node]
        if peer.parted:
            return
        peer.part()
        if peer.head * self._per_update >= self._control[Word.TOTAL]:  # it has ended
            return
        control = self._control
        control.publish(Word.LIVING, control[Word.LIVING] & ~(1 << lost.node))
        self._lost(lost)

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
        return all(peer.parted or peer.head * self._per_update >= total for peer in self._peers.values())

    def _part(self) -> None:
        """Say so, and wait a moment until the others know."""
        for peer in self._peers.values():
            peer.tell(Kind.DONE, self._control[Word.HEAD])
        deadline = time.monotonic() + _LINGERING
        while time.monotonic() < deadline and not all(peer.done or peer.parted for peer in self._peers.values()):
            self._hear(_LONGEST)
