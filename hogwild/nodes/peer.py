"""Another machine, as the courier of this one sees it: what it is to be sent, and what comes from it.

    courier ─ send ─▶ outbox ─ thread ══▶ gradients        each thread waits for one thing, and tells the courier
            ─ tell ─▶          thread ══▶ words            through one queue
            ─ give ─▶          thread ══▶ a version
            ◀─ queue ───────── thread ◀══ gradients
            ◀─ queue ───────── thread ◀══ words
            ◀─ queue ───────── thread ◀══ a version, where it was asked for

A gradient is sent once its slot over there is surely free: when its update is below the other's head, as far as it is
known here, plus the number of updates whose gradients may wait. The lowest goes first, so none waits behind one that
may not go yet. Of the words only the newest matters. A machine that comes back is another `Peer` than it was before,
with connections of its own, so nothing that it said before is taken for what it says now.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import Tensor

from hogwild.errors import one_line
from hogwild.nodes.brought import Brought
from hogwild.nodes.gloo import Mail
from hogwild.nodes.messages import NOTHING, Kind, Message, Saying

_GRADIENTS, _WORDS, _VERSIONS = range(3)  # channels
_WORDS_AHEAD = 4
_MOST_AHEAD, _BYTES_AHEAD = 8, 1 << 26  # gradients that may be on their way from one machine, in number and bytes
PIECE = 1 << 20  # bytes that are sent at once: words go between two pieces, and each says that its sender lives


@dataclass(frozen=True)
class Arrived:
    """A gradient came; its memory is given back by `Peer.free`."""

    peer: Peer
    message: Message


@dataclass(frozen=True)
class Broken:
    """The connection to a machine is, and why."""

    peer: Peer
    why: str


@dataclass(frozen=True)
class Lost:
    """A machine is gone, and why; `update`: where this one was then, if that is told later."""

    node: int
    why: str
    update: int | None = None


@dataclass(frozen=True)
class Formed:
    """A machine that comes back is connected, or cannot be: no `mail`."""

    node: int
    mail: Mail | None


@dataclass(frozen=True)
class Back:
    """A machine that was lost trains again."""

    node: int


News = Arrived | Broken | Formed | Brought | None
"""What threads tell the courier; None: look again."""


class Peer:
    """One other machine.

    Args:
        node: its number.
        mail: what messages travel by.
        news: where its threads tell what has come.
        slot_bytes: of a gradient slot.
        window: updates whose gradients may wait there.
        per_update: tickets of an update.
        beat: seconds between two words, where there is nothing new.
        kind: what this machine says to it first.
    """

    def __init__(
        self,
        node: int,
        mail: Mail,
        news: SimpleQueue[News],
        *,
        slot_bytes: int,
        window: int,
        per_update: int,
        beat: float,
        kind: Kind,
    ) -> None:
        self.node = node
        self.head = 0  # versions that it is known to have made
        self.heard = time.monotonic()  # when it last said something
        self.said: Saying | None = None  # its newest word
        self.since = NOTHING  # the ticket from which on it is sent all that is computed here
        self.wanted = NOTHING  # the version that it was asked for
        self.given = False  # it was given one
        self.parted = False  # it has been told so, or is gone: nothing is sent any more
        self._mail = mail
        self._news = news
        self._slot_bytes = slot_bytes
        self._window = window
        self._per_update = per_update
        self._beat = beat
        self._outbox: dict[int, Message] = {}
        self._word = Saying(kind, 0)
        self._told = 0  # the head of this machine in what has left for it
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # for the sender of gradients
        self._news_to_tell = threading.Condition(self._lock)  # for that of words
        self._received = 0  # pieces of gradients, those that are expected among them
        self._expected: SimpleQueue[tuple[Message, list[Callable[[], None]]]] = SimpleQueue()
        ahead = max(2, min(_MOST_AHEAD, window * per_update, _BYTES_AHEAD // max(1, slot_bytes)))
        try:
            for _ in range(ahead):
                self.free(Message(slot_bytes))
        except ConnectionError as error:  # it is gone already
            news.put(Broken(self, one_line(error)))
            return
        for act in (self._receive_gradients, self._receive_words, self._send_gradients, self._send_words):
            self._start(act)

    # --- what the courier does

    @property
    def sent_to(self) -> bool:
        """True where it is sent what is computed here."""
        return self.since != NOTHING and not self.parted

    @property
    def backlog(self) -> int:
        """Bytes of the gradients that are still to be sent to it."""
        return len(self._outbox) * self._slot_bytes

    @property
    def told(self) -> int:
        """The head of this machine that it has been told, or will be by a gradient that may go at once."""
        with self._lock:
            tickets = range(self.head * self._per_update, (self.head + self._window) * self._per_update)
            heads = [self._outbox[ticket].head for ticket in tickets if ticket in self._outbox]
            return max([self._told, *heads])

    @property
    def done(self) -> bool:
        """It has said so."""
        return self.said is not None and self.said.kind == Kind.DONE

    @property
    def has_come(self) -> bool:
        """True where it has said something, and does not say that it comes back."""
        return self.said is not None and self.said.kind != Kind.COMES

    def begin(self, kind: Kind, since: int, head: int, has: int) -> None:
        """From that ticket on it is sent all that is computed here, where the head is that now; it has version `has`,
        or will have it before it takes in a gradient."""
        self._hear_head(has)
        self.since = since
        self.tell(kind, head)

    def ask(self, wanted: int, size_of: Callable[[int], int]) -> None:
        """Ask it for that version, or a later one; `size_of` says how many bytes one has, and 0 where there is none."""
        self.wanted = wanted
        self._start(lambda: self._receive_version(size_of))
        self.tell(Kind.COMES, 0)

    def give(self, brought: Brought) -> None:
        """Send it a version."""
        self.given = True
        self._start(lambda: self._send_version(brought))

    def free(self, message: Message) -> None:
        """Let the next gradient come into that memory."""
        pieces = list(enumerate(_pieces(message.bytes), self._received))
        self._received += len(pieces)
        self._expected.put((message, [self._mail.expect(self.node, _GRADIENTS, *piece) for piece in pieces]))

    def send(self, ticket: int, message: Message) -> None:
        """Send a gradient as soon as there is room for it."""
        with self._lock:
            self._outbox[ticket] = message
            self._room.notify()

    def tell(self, kind: Kind, head: int) -> None:
        """Say that, with the head of this machine, as soon as the word before has left."""
        with self._lock:
            self._word, self._told = Saying(kind, head, self.since, self.wanted), head
            self._news_to_tell.notify()

    def part(self) -> None:
        """Send nothing any more."""
        with self._lock:
            self.parted = True
            self._outbox.clear()
            self._room.notify()
            self._news_to_tell.notify()

    # --- what its threads do

    def _start(self, act: Callable[[], None]) -> None:
        threading.Thread(target=self._guarded, args=(act,), daemon=True).start()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ConnectionError as error:
            self._news.put(Broken(self, one_line(error)))
        except BaseException as error:
            self._news.put(Broken(self, f"{type(error).__name__}: {one_line(error)}"))
            raise

    def _receive_gradients(self) -> None:
        while True:
            message, pieces = self._expected.get()
            for wait in pieces:
                wait()
                self.heard = time.monotonic()
            self._hear_head(message.head)
            self._news.put(Arrived(self, message))

    def _receive_words(self) -> None:
        expected: deque[tuple[Message, Callable[[], None]]] = deque()
        number = 0
        while True:
            while len(expected) < _WORDS_AHEAD:
                message = Message()
                expected.append((message, self._mail.expect(self.node, _WORDS, number, message.bytes)))
                number += 1
            message, wait = expected.popleft()
            wait()
            said = message.word
            self._hear(said.head)
            self.said = said
            self._news.put(None)

    def _receive_version(self, size_of: Callable[[int], int]) -> None:
        header = Message()
        self._mail.expect(self.node, _VERSIONS, 0, header.bytes)()
        version, total = header.first, header.head
        size = size_of(version) if version >= self.wanted else 0
        if not size:
            raise ConnectionError(f"it brought version {version}, where {self.wanted} was asked for")
        content = torch.empty(size, dtype=torch.uint8)
        waits = [self._mail.expect(self.node, _VERSIONS, n, piece) for n, piece in enumerate(_pieces(content), 1)]
        for wait in waits:
            wait()
        self._news.put(Brought(version, total, content))

    def _send_version(self, brought: Brought) -> None:
        header = Message()
        header.say(brought.version, brought.total)
        for number, piece in enumerate((header.bytes, *_pieces(brought.content))):
            self._mail.send(self.node, _VERSIONS, number, piece)

    def _hear(self, head: int) -> None:
        self.heard = time.monotonic()
        self._hear_head(head)

    def _hear_head(self, head: int) -> None:
        with self._lock:
            if head > self.head:
                self.head = head
                if self._outbox:
                    self._room.notify()

    def _send_gradients(self) -> None:
        number = 0
        while (message := self._next_gradient()) is not None:
            for piece in _pieces(message.bytes):
                self._mail.send(self.node, _GRADIENTS, number, piece)
                number += 1

    def _next_gradient(self) -> Message | None:
        """The next that may go; None once nothing is sent any more."""
        with self._room:
            while not self.parted:
                for ticket in [t for t in self._outbox if t // self._per_update < self.head]:
                    del self._outbox[ticket]  # it was made there of another's
                ticket = min(self._outbox, default=-1)
                if 0 <= ticket < (self.head + self._window) * self._per_update:
                    message = self._outbox.pop(ticket)
                    self._told = max(self._told, message.head)
                    return message
                self._room.wait()
            return None

    def _send_words(self) -> None:
        number, message = 0, Message()
        said: Saying | None = None
        while not self.parted:
            with self._news_to_tell:
                if self._word == said and not self.parted:
                    self._news_to_tell.wait(self._beat)
                said = self._word
            message.say_word(said)
            self._mail.send(self.node, _WORDS, number, message.bytes)
            number += 1


def _pieces(content: Tensor) -> list[Tensor]:
    return [content[first : first + PIECE] for first in range(0, len(content), PIECE)]
