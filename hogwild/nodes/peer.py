"""Another machine, as the courier of this one sees it: what it is to be sent, and what comes from it.

    courier ─ send ─▶ outbox ─ thread ══▶ gradients        each thread waits for one thing, and tells the courier
            ─ tell ─▶          thread ══▶ words            through one queue
            ◀─ queue ───────── thread ◀══ gradients
            ◀─ queue ───────── thread ◀══ words

A gradient is sent once its slot over there is surely free: when its update is below the other's head, as far as it is
known here, plus the number of updates whose gradients may wait. The lowest goes first, so none waits behind one that
may not go yet. Of the words only the newest matters.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from torch import Tensor

from hogwild.errors import one_line
from hogwild.nodes.gloo import Mail
from hogwild.nodes.messages import Kind, first_of, head_of, new_message, write_header

_GRADIENTS, _WORDS = range(2)  # channels
_WORDS_AHEAD = 4
_MOST_AHEAD, _BYTES_AHEAD = 8, 1 << 26  # gradients that may be on their way from one machine, in number and bytes


@dataclass(frozen=True)
class Arrived:
    """A gradient came; its memory is given back by `Peer.free`."""

    node: int
    message: Tensor


@dataclass(frozen=True)
class Lost:
    """A machine is gone, and why."""

    node: int
    why: str


News = Arrived | Lost | None
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
        head: the version that all machines begin with.
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
        head: int,
    ) -> None:
        self.node = node
        self.head = head  # versions that it is known to have made
        self.told = head  # versions of this machine that it has been told of
        self.heard = time.monotonic()  # when it last said something
        self.done = False  # it has said so
        self.parted = False  # it has been told so, or is gone: nothing is sent any more
        self._mail = mail
        self._news = news
        self._window = window
        self._per_update = per_update
        self._beat = beat
        self._outbox: dict[int, Tensor] = {}
        self._word = Kind.LIVES, head
        self._changed = threading.Condition()
        self._received = 0
        self._expected: SimpleQueue[tuple[Tensor, Callable[[], None]]] = SimpleQueue()
        ahead = max(2, min(_MOST_AHEAD, window * per_update, _BYTES_AHEAD // max(1, slot_bytes)))
        for _ in range(ahead):
            self.free(new_message(slot_bytes))
        for act in (self._receive_gradients, self._receive_words, self._send_gradients, self._send_words):
            threading.Thread(target=self._guarded, args=(act,), daemon=True).start()

    # --- what the courier does

    def free(self, message: Tensor) -> None:
        """Let the next gradient come into that memory."""
        number, self._received = self._received, self._received + 1
        self._expected.put((message, self._mail.expect(self.node, _GRADIENTS, number, message)))

    def send(self, ticket: int, message: Tensor) -> None:
        """Send a gradient as soon as there is room for it."""
        with self._changed:
            self._outbox[ticket] = message
            self._changed.notify_all()

    def tell(self, kind: Kind, head: int) -> None:
        """Say that, with the head of this machine, as soon as the word before has left."""
        with self._changed:
            self._word, self.told = (kind, head), head
            self._changed.notify_all()

    def part(self) -> None:
        """Send nothing any more."""
        with self._changed:
            self.parted = True
            self._outbox.clear()
            self._changed.notify_all()

    # --- what its threads do

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ConnectionError as error:
            self._news.put(Lost(self.node, one_line(error)))
        except BaseException as error:
            self._news.put(Lost(self.node, f"{type(error).__name__}: {one_line(error)}"))
            raise

    def _receive_gradients(self) -> None:
        while True:
            message, wait = self._expected.get()
            wait()
            self._hear(head_of(message))
            self._news.put(Arrived(self.node, message))

    def _receive_words(self) -> None:
        expected: deque[tuple[Tensor, Callable[[], None]]] = deque()
        number = 0
        while True:
            while len(expected) < _WORDS_AHEAD:
                message = new_message()
                expected.append((message, self._mail.expect(self.node, _WORDS, number, message)))
                number += 1
            message, wait = expected.popleft()
            wait()
            self.done = self.done or first_of(message) == Kind.DONE
            self._hear(head_of(message))
            self._news.put(None)

    def _hear(self, head: int) -> None:
        with self._changed:
            self.heard = time.monotonic()
            if head > self.head:
                self.head = head
                self._changed.notify_all()

    def _send_gradients(self) -> None:
        number = 0
        while (message := self._next_gradient()) is not None:
            self._mail.send(self.node, _GRADIENTS, number, message)
            self.told = max(self.told, head_of(message))
            number += 1

    def _next_gradient(self) -> Tensor | None:
        """The next that may go; None once nothing is sent any more."""
        with self._changed:
            while not self.parted:
                for ticket in [t for t in self._outbox if t // self._per_update < self.head]:
                    del self._outbox[ticket]  # it was made there of another's
                ticket = min(self._outbox, default=-1)
                if 0 <= ticket < (self.head + self._window) * self._per_update:
                    return self._outbox.pop(ticket)
                self._changed.wait()
            return None

    def _send_words(self) -> None:
        number, message, said = 0, new_message(), None
        while not self.parted:
            with self._changed:
                if self._word == said and not self.parted:
                    self._changed.wait(self._beat)
                said = self._word
            write_header(message, *said)
            self._mail.send(self.node, _WORDS, number, message)
            number += 1
