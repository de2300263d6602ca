"""The averager: a process of its own on each machine of those that train apart, which has their values averaged.

    block of this machine ── PROPOSED ──▶ machine 0: those of all that live, added up in their order, divided, stepped
                          ◀─ AVERAGED ─── the same mean to each

Invariant: it touches the block only while AVERAGED < PROPOSED, and says that the mean is there once it is written
whole. So all machines have the values of machine 0, to the bit, whoever was lost: a machine whose values did not come
is left out, and one that does not hear of machine 0 any more has nothing to go on with, and ends. Machine 0 waits for
the slowest, as long as that one says that it lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from hogwild.errors import NodeError
from hogwild.nodes.correspondent import Correspondent
from hogwild.nodes.gloo import Mail
from hogwild.nodes.messages import Kind, Message
from hogwild.nodes.outer import OuterSteps
from hogwild.nodes.peer import Arrived, Broken, Lost, News, Peer
from hogwild.shared.arena import as_tensor
from hogwild.shared.exchange import Exchange
from hogwild.shared.layout import Block
from hogwild.shared.state import SharedState
from hogwild.shared.words import Word

_LOOK_EVERY = 2e-3  # seconds
_CLOSING = 0.5  # seconds for the last words of a machine to be heard whose connection has closed
_LEADER = 0


class Averager(Correspondent):
    """Has the values of this machine averaged until the run is over.

    Args:
        state: its view of the shared state, with locks.
        per_update: tickets of an update.
        mails: what messages travel by, to each machine.
        timeout: seconds after which a machine that says nothing is lost.
        lost: told of a machine that is, and why.
    """

    def __init__(
        self,
        state: SharedState,
        per_update: int,
        mails: Mapping[int, Mail],
        timeout: float,
        lost: Callable[[Lost], None],
    ) -> None:
        super().__init__(timeout)
        self._control, self._plan = state.control, state.plan
        self._per_update = per_update
        self._lost = lost
        self._bytes = as_tensor(state.exchanged)
        self._values = self._laid_on(Block.of(self._bytes))
        dealing = state.plan.dealing
        assert dealing.averages is not None
        self._leads = dealing.node == _LEADER
        predicts = state.plan.optimizer.holds_parameters
        self._outer = OuterSteps.of(dealing.averages, self._values, predicts=predicts) if self._leads else None
        self._arrived: dict[int, Message] = {}
        self._closed: list[tuple[float, Lost]] = []  # of whom the last words are yet to be heard, and until when
        self._sent = False  # to machine 0, of the version that is proposed now
        start = self._control[Word.PROPOSED]
        self._control.publish(Word.AVERAGED, start)
        others = range(1, dealing.nodes) if self._leads else (_LEADER,)
        self._peers = {node: self._peer(node, mails[node], start) for node in others}

    def _peer(self, node: int, mail: Mail, start: int) -> Peer:
        peer = Peer(
            node,
            mail,
            self._news,
            slot_bytes=len(self._bytes),
            window=self._plan.rows + 1,
            per_update=1,
            beat=self._beat,
            kind=Kind.LIVES,
        )
        peer.begin(Kind.LIVES, start, start, start)
        return peer

    def _laid_on(self, block: Block) -> Exchange:
        return Exchange(*self._plan.averaged, block)

    def run(self) -> None:
        """Average until the last version is the mean, and the others know.

        Raises:
            NodeError: another machine sent what no machine of this run sends.
        """
        self._correspond()
        self._part(self._control[Word.AVERAGED])
        while self._closed:
            time.sleep(_LOOK_EVERY)
            self._tell_lost()

    def _act(self) -> bool:
        averaged = self._is_proposed() and (self._gather() if self._leads else self._ask())
        self._listen()
        self._tell_lost()
        return averaged

    # --- the mean

    def _is_proposed(self) -> bool:
        return self._control.observe(Word.PROPOSED) > self._control[Word.AVERAGED]

    def _gather(self) -> bool:
        """Make the mean of the values of all machines that live, once they are there, and send it to each."""
        version = self._control[Word.PROPOSED]
        living = [node for node, peer in self._peers.items() if not peer.parted]
        if not all(node in self._arrived for node in living):
            return False
        messages = [self._taken(node, version) for node in living]
        average(self._values, [self._laid_on(Block.of(message.slot)) for message in messages])
        if self._outer is not None:
            self._outer.step(self._values)
        for node, message in zip(living, messages, strict=True):
            self._free(self._peers[node], message)
        made = self._message(version, version)
        for node in living:
            self._peers[node].send(version, made)
        self._publish(version)
        return True

    def _ask(self) -> bool:
        """Send the values of this machine, and take what comes back."""
        version = self._control[Word.PROPOSED]
        if not self._sent:
            self._peers[_LEADER].send(version, self._message(version, self._control[Word.AVERAGED]))
            self._sent = True
        if _LEADER not in self._arrived:
            return False
        message = self._taken(_LEADER, version)
        self._bytes.copy_(message.slot)
        self._free(self._peers[_LEADER], message)
        self._sent = False
        self._publish(version)
        return True

    def _message(self, version: int, head: int) -> Message:
        message = Message(len(self._bytes))
        message.slot.copy_(self._bytes)
        message.say(version, head)
        return message

    def _taken(self, node: int, version: int) -> Message:
        message = self._arrived.pop(node)
        if message.first != version:
            raise NodeError(f"machine {node} sent values of version {message.first}, where {version} is averaged")
        return message

    def _publish(self, version: int) -> None:
        self._control.publish(Word.AVERAGED, version)
        for peer in self._peers.values():
            peer.tell(Kind.LIVES, version)

    # --- who lives

    def _take_news(self, news: News) -> None:
        match news:
            case Arrived():
                self._arrived[news.peer.node] = news.message
            case Broken():
                self._lose(news.peer, news.why)

    def _lose(self, peer: Peer, why: str) -> None:
        if peer.parted:
            return
        peer.part()
        self._arrived.pop(peer.node, None)
        self._closed.append((time.monotonic() + _CLOSING, Lost(peer.node, why, self._update())))

    def _update(self) -> int:
        """The last of this machine; of rules that count none, the last whose values it has laid out."""
        control = self._control
        return max(control.commits(), control[Word.PROPOSED], control[Word.AVERAGED])

    def _tell_lost(self) -> None:
        """Tell of machines that are gone, but of those that had ended: each of a peer's threads hears by itself that
        the connection has closed, and the one that hears words may be late."""
        while self._closed and self._closed[0][0] < time.monotonic():
            _, lost = self._closed.pop(0)
            peer = self._peers[lost.node]
            if not (peer.done or self._ends_with(peer.head)):
                self._lost(lost)

    # --- the end

    def _ends_with(self, version: int) -> bool:
        return version * self._per_update >= self._control[Word.TOTAL]

    def _is_over(self) -> bool:
        """True once the last version is the mean here and, as far as they live, on the machines that this one sees."""
        last = self._control[Word.AVERAGED]
        return self._ends_with(last) and all(peer.parted or peer.head >= last for peer in self._peers.values())


def average(own: Exchange, others: Sequence[Exchange]) -> None:
    """Make these values the mean of theirs and the others', added up in this order; integers stay as they are. Halves
    are added up as float32."""
    for number, values in enumerate(own.flats):
        if not (values.is_floating_point() or values.is_complex()):
            continue
        total = values.to(torch.promote_types(values.dtype, torch.float32))
        for other in others:
            total += other.flats[number]
        values.copy_(total.div_(1 + len(others)))
