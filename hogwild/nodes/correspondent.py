"""What a machine's process for the others does whatever it carries: it hears them, notices who is gone, and parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from queue import Empty, SimpleQueue

from hogwild.nodes.messages import Kind, Message
from hogwild.nodes.peer import News, Peer

_HURRY, _LOOK_EVERY = 50e-6, 2e-3  # seconds
_BEATS = 5  # words within the time after which a machine that says nothing is lost


class Correspondent(ABC):
    """Writes to other machines until the run is over on all of them.

    Args:
        timeout: seconds after which a machine that says nothing is lost.
    """

    _shortest, _longest = _HURRY, _LOOK_EVERY  # seconds between two looks, where nobody tells it to look

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._beat = timeout / _BEATS
        self._news: SimpleQueue[News] = SimpleQueue()
        self._looked = time.monotonic()
        self._peers: dict[int, Peer] = {}
        self._hurries = False  # what it has to do depends on when it looks

    @abstractmethod
    def _act(self) -> bool:
        """Do what there is to do; True where there was something."""

    @abstractmethod
    def _is_over(self) -> bool:
        """True once the run is, here and, as far as it is known, on the others."""

    @abstractmethod
    def _take_news(self, news: News) -> None:
        """Take in what a thread of a peer tells."""

    @abstractmethod
    def _lose(self, peer: Peer, why: str) -> None:
        """Go on without that machine, if that is not done already."""

    def _correspond(self) -> None:
        """Hear and act until the run is over."""
        pause = self._shortest
        while not self._is_over():
            self._hear(pause)
            pause = self._shortest if self._act() else min(2 * pause, self._longest)
            if self._hurries:
                pause = _HURRY

    def _hear(self, timeout: float) -> None:
        """Take what has come, waiting so long for the first."""
        try:
            while True:
                news = self._news.get(timeout=timeout)
                timeout = 0
                self._take_news(news)
        except Empty:
            return

    def _free(self, peer: Peer, message: Message) -> None:
        """Let the next message of that machine come into that memory."""
        try:
            peer.free(message)
        except ConnectionError as error:
            self._lose(peer, str(error))

    def _listen(self) -> None:
        """Look whether somebody has said nothing for too long; not right after this machine itself stood still."""
        now = time.monotonic()
        stood_still, self._looked = now - self._looked > self._timeout / 2, now
        for peer in self._peers.values():
            if stood_still:
                peer.heard = max(peer.heard, now)  # one that comes back has longer
            elif not peer.parted and now - peer.heard > self._timeout:
                self._lose(peer, f"it has said nothing for {self._timeout:g} s")

    def _part(self, head: int) -> None:
        """Say that this machine is done, and stay until the others have said so too: what was sent may be long on its
        way, and would be lost with the connection. Nobody is waited for who says nothing."""
        for peer in self._peers.values():
            peer.tell(Kind.DONE, head)
        while not all(peer.done or not peer.sent_to for peer in self._peers.values()):
            self._hear(_LOOK_EVERY)
            self._listen()
