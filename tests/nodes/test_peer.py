"""What is sent to another machine: gradients once there is room, and a word only where it says something new."""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import partial
from queue import SimpleQueue

import pytest
import torch
from side_by_side import within

from hogwild.nodes.gloo import GlooMail
from hogwild.nodes.messages import NOTHING, Kind, Message, Saying
from hogwild.nodes.peer import PIECE, Arrived, News, Peer

_NEVER = 1e6  # seconds between two words: none comes by the beat
_WINDOW = 3


class Sent:
    """Mail that is noted down, to a machine that never says anything."""

    def __init__(self) -> None:
        self.words: list[Saying] = []
        self.tickets: list[int] = []
        self._goes = threading.Event()
        self._goes.set()

    def hold(self):
        """Let no gradient leave until `go_on`."""
        self._goes.clear()

    def go_on(self):
        """Let them leave."""
        self._goes.set()

    def send(self, node, channel, number, message):
        """Note it down."""
        copy = Message(len(message) - len(Message().bytes))
        copy.bytes.copy_(message)
        if len(copy.slot):
            assert self._goes.wait(30)
            assert number == len(self.tickets)
            self.tickets.append(copy.first)
        else:
            assert number == len(self.words)
            self.words.append(copy.word)

    def expect(self, node, channel, number, message):
        """Nothing ever comes."""
        return threading.Event().wait


class Halves:
    """The two ends of a connection in one process; a piece of a gradient comes once it is let through."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int, int], SimpleQueue[torch.Tensor]] = defaultdict(SimpleQueue)
        self.through = threading.Semaphore(0)
        self.sizes: list[int] = []  # of the pieces of gradients

    def send(self, node, channel, number, message):
        """Keep a copy for the other."""
        if len(message) > len(Message().bytes):
            self.sizes.append(len(message))
        self._sent[node, channel, number].put(message.clone())

    def expect(self, node, channel, number, message):
        """What the other sends in that place."""

        def wait():
            content = self._sent[1 - node, channel, number].get()
            if len(content) > len(Message().bytes):
                self.through.acquire()
            message.copy_(content)

        return wait


def test_every_piece_of_a_long_gradient_says_that_its_sender_lives():
    mail, size = Halves(), 5 * PIECE // 2
    news: list[SimpleQueue[News]] = [SimpleQueue(), SimpleQueue()]
    here, there = (
        Peer(node, mail, news[node], slot_bytes=size, window=_WINDOW, per_update=1, beat=_NEVER, kind=Kind.LIVES)
        for node in range(2)
    )
    there.begin(Kind.LIVES, 0, 0, 0)  # `there` is whom machine 0 sends to, `here` whom machine 1 hears
    message = Message(size)
    message.slot.random_()
    message.say(2, 7)
    there.send(2, message)
    until(lambda: len(mail.sizes) == 3)
    assert sum(mail.sizes) == len(message.bytes)
    for _ in range(2):
        before = here.heard
        mail.through.release()
        until(lambda: here.heard > before)  # noqa: B023
    assert here.head == 0  # what it says counts once it is there
    mail.through.release()
    until(lambda: here.head == 7)
    while (arrived := news[0].get(timeout=30)) is None:
        pass
    assert isinstance(arrived, Arrived)
    assert torch.equal(arrived.message.bytes, message.bytes)
    here.free(arrived.message)  # and a second one comes into the same memory
    there.send(1, message)
    for _ in range(3):
        mail.through.release()
    while (arrived := news[0].get(timeout=30)) is None:
        pass
    assert torch.equal(arrived.message.bytes, message.bytes)
    here.part()
    there.part()


@pytest.fixture
def mail():
    return Sent()


@pytest.fixture
def peer(mail):
    news: SimpleQueue[News] = SimpleQueue()
    peer = Peer(1, mail, news, slot_bytes=8, window=_WINDOW, per_update=1, beat=_NEVER, kind=Kind.LIVES)
    yield peer
    peer.part()
    assert news.empty()


until = partial(within, 30)


def send(peer, ticket, head=0):
    """Send a gradient, as the courier does."""
    message = Message(8)
    message.say(ticket, head)
    peer.send(ticket, message)


def test_gradients_are_sent_without_a_word_beside_each(peer, mail):
    peer.begin(Kind.LIVES, 0, 0, 0)
    until(lambda: mail.words and mail.words[-1].since == 0)
    before = len(mail.words)
    for head in range(20):
        send(peer, head)
        until(lambda: mail.tickets == list(range(head + 1)))  # noqa: B023
        peer._hear(head + 1)
    peer.tell(Kind.LIVES, 20)
    until(lambda: mail.words[-1].head == 20)
    assert len(mail.words) == before + 1


def test_a_gradient_waits_until_its_slot_over_there_is_free(peer, mail):
    peer.begin(Kind.LIVES, 0, 0, 1)
    send(peer, _WINDOW + 1)
    send(peer, 2)
    until(lambda: mail.tickets == [2])
    send(peer, 0)  # which is needed no more: taken out by the sender when it looks for what may go
    until(lambda: waiting(peer) == [_WINDOW + 1])
    assert mail.tickets == [2]
    peer._hear(2)
    until(lambda: mail.tickets == [2, _WINDOW + 1])


def waiting(peer):
    """The tickets of what is to be sent, while its sender does not look at them."""
    with peer._lock:
        return sorted(peer._outbox)


def test_a_gradient_that_goes_at_once_tells_the_head_and_one_that_waits_does_not(peer, mail):
    peer.begin(Kind.LIVES, 0, 0, 0)
    send(peer, _WINDOW, head=5)
    assert peer.told == 0
    send(peer, _WINDOW - 1, head=5)
    assert peer.told == 5
    until(lambda: mail.tickets == [_WINDOW - 1])


def test_a_gradient_that_is_needed_no_more_has_told_nothing(peer, mail):
    peer.begin(Kind.LIVES, 0, 0, 0)
    mail.hold()
    send(peer, 0, head=1)
    until(lambda: not peer.backlog)
    send(peer, 1, head=5)
    assert peer.told == 5
    peer._hear(2)
    assert peer.told == 1
    send(peer, 1, head=6)
    assert peer.told == 1
    mail.go_on()
    until(lambda: not peer.backlog)
    assert mail.tickets == [0]
    assert peer.told == 1


def test_a_new_head_is_told_at_once_and_once(peer, mail):
    for head in range(3):
        peer.tell(Kind.LIVES, head)
        until(lambda: mail.words and mail.words[-1].head == head)  # noqa: B023
    assert mail.words == [Saying(Kind.LIVES, head, NOTHING, NOTHING) for head in range(3)]


def test_an_old_head_is_told_by_the_beat(mail):
    peer = Peer(1, mail, SimpleQueue(), slot_bytes=8, window=_WINDOW, per_update=1, beat=0.01, kind=Kind.LIVES)
    until(lambda: mail.words)
    peer.tell(Kind.LIVES, 7)
    until(lambda: mail.words[-1].head == 7)
    told = len(mail.words)
    until(lambda: len(mail.words) >= told + 3)
    assert set(mail.words[told:]) == {mail.words[told - 1]}
    peer.part()


def test_what_a_message_says_is_what_is_read_from_its_bytes():
    message, copy = Message(16), Message(16)
    message.say(12, 2**40)
    copy.bytes.copy_(message.bytes)
    assert (copy.first, copy.head, len(copy.slot)) == (12, 2**40, 16)
    saying = Saying(Kind.COMES, 5, since=NOTHING, wanted=3)
    message.say_word(saying)
    copy.bytes.copy_(message.bytes)
    assert copy.word == saying


def test_what_gloo_says_is_told_without_the_place_in_its_source():
    class Closed:
        def send(self, *arguments):
            raise RuntimeError(
                "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
                "[127.0.0.1]:5002. This is typically caused by a remote worker crashing, see also the logs\nof all"
            )

    mail = object.__new__(GlooMail)
    mail._group, mail._rank = Closed(), {1: 1}
    with pytest.raises(ConnectionError, match=r"^Connection closed by peer \[127\.0\.0\.1\]:5002$"):
        mail.send(1, 0, 0, torch.zeros(1))
