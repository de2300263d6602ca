"""Slow links: what a packet waits, what a cut drops, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from clocks import Clock
from side_by_side import at_once
from slow_links import links

from hogwild.bench import links as made_by
from hogwild.bench.links import network
from hogwild.errors import ArgumentError

PORT = 5000
AT_ONCE = 10  # datagrams of 8,000 bytes: a socket that nobody reads keeps 16 of them, and drops the others


def bound(host):
    """A socket at that host, which others can send datagrams to; a thread of its own, so that ours stays here."""
    made = []

    def bind():
        host.enter()
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        found.bind((host.address, PORT))
        found.settimeout(60)
        made.append(found)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    return made[0]


def test_each_packet_comes_in_order_and_no_sooner_than_it_may():
    with links(3, 0.03) as net:
        first, second, third = map(bound, net.hosts)
        with first, second, third:
            began = time.monotonic()
            for number in range(10):
                first.sendto(bytes([number]), (net.hosts[2].address, PORT))
            second.sendto(b"other", (net.hosts[0].address, PORT))
            assert [third.recv(10)[0] for _ in range(10)] == list(range(10))
            assert first.recv(10) == b"other"
            assert time.monotonic() - began >= 0.03


def test_a_cut_is_of_one_host_and_is_mended():
    with links(3) as net:
        first, second, third = map(bound, net.hosts)
        with first, second, third:
            net.cut(1)
            first.sendto(b"lost", (net.hosts[1].address, PORT))
            second.sendto(b"lost too", (net.hosts[2].address, PORT))
            first.sendto(b"came", (net.hosts[2].address, PORT))
            assert third.recv(10) == b"came", "the others are not cut off"
            net.mend(1)
            second.sendto(b"came too", (net.hosts[2].address, PORT))
            assert third.recv(10) == b"came too", "and nothing before it"
            first.sendto(b"whole", (net.hosts[1].address, PORT))
            assert second.recv(10) == b"whole"


class Between:
    """A relay between three devices that are no more than sockets, by a clock that goes on when it is told to."""

    def __init__(self, delay, monkeypatch):
        self.clock = Clock()
        monkeypatch.setattr(made_by, "time", self.clock)
        self.hosts, devices = zip(
            *[socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)], strict=True
        )
        self.sockets = [*self.hosts, *devices]
        for one in self.sockets:
            one.setblocking(False)
        self.devices = [device.fileno() for device in devices]
        self.relay = made_by._Relay(self.devices, delay, None)

    def send(self, host, to):
        self.hosts[host].send(bytes([0x45, *[0] * 18, to + 1, host]))
        self.relay._take(self.devices[host])

    def after(self, seconds):
        """Who has got one from whom, so much later."""
        self.clock.now += seconds
        self.relay._give()
        found = []
        for number, host in enumerate(self.hosts):
            with suppress(BlockingIOError):
                while True:
                    found.append((host.recv(100)[-1], number))
        return found


@pytest.fixture
def between(monkeypatch):
    made = Between(0.5, monkeypatch)
    yield made
    for one in made.sockets:
        one.close()


def test_a_packet_waits(between):
    between.send(0, 1)
    assert between.after(0.3) == []
    between.send(1, 2)
    assert between.after(0.3) == [(0, 1)]
    assert between.after(0.3) == [(1, 2)]


def test_what_is_on_its_way_is_lost_where_it_is_cut(between):
    between.send(0, 1)
    between.send(1, 0)
    between.send(0, 2)
    between.relay._cut = {frozenset((0, 1))}
    assert between.after(1) == [(0, 2)]
    between.relay._cut = set()
    between.send(0, 1)
    assert between.after(1) == [(0, 1)]


def test_each_host_is_alone():
    with links(2) as net:
        first = bound(net.hosts[0])
        with first, suppress(ConnectionError):
            first.sendto(b"", ("127.0.0.1", PORT))
        assert not [name for _, name in socket.if_nameindex() if name.startswith("hogwild")], "not where we are"


@pytest.mark.parametrize("ended", ["it leaves", "the relay is killed"])
def test_nothing_is_left(ended):
    me = psutil.Process()
    with links(2) as net:
        path = Path(net.hosts[0].path)
        relay = int(path.parts[2])
        assert path.exists()
        if ended == "the relay is killed":
            os.kill(relay, signal.SIGKILL)
    assert not path.exists()
    assert relay not in [child.pid for child in me.children(recursive=True)]
    with pytest.raises(OSError, match="No such file"):
        net.hosts[0].enter()


def test_networks_do_not_know_of_each_other():
    def talks():
        with links(2) as net:
            first, second = map(bound, net.hosts)
            with first, second:
                first.sendto(b"here", (net.hosts[1].address, PORT))
                return second.recv(10)

    with links(2) as other:
        idle = bound(other.hosts[1])
        assert talks() == b"here"
        idle.settimeout(0.05)
        with idle, pytest.raises(TimeoutError):
            idle.recv(10)


def test_where_it_cannot_be_made_it_says_why(monkeypatch):
    monkeypatch.setattr(made_by, "_TUN", "/dev/nothing")
    with pytest.raises(ArgumentError, match="slow links need network namespaces and /dev/nothing of Linux"):
        network(2, 0.0).__enter__()


def refused(hosts, delay, pipe):
    pipe.send("unshare: Operation not permitted")


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_refusal_of_the_system_is_told(monkeypatch):
    monkeypatch.setattr(made_by, "_TUN", "/dev/null")
    monkeypatch.setattr(made_by, "_relay_main", refused)
    with pytest.raises(ArgumentError, match="slow links need the rights of root, .*: unshare: Operation not permitted"):
        network(2, 0.0).__enter__()


def test_packets_that_come_together_are_kept_apart():
    with links(2, 0.005) as net:
        first, second = map(bound, net.hosts)
        with first, second:
            there, here = ((net.hosts[number].address, PORT) for number in (1, 0))
            at_once(
                *[lambda: [first.sendto(b"x" * 8000, there) for _ in range(AT_ONCE)]],
                *[lambda: [second.sendto(b"y" * 8000, here) for _ in range(AT_ONCE)]],
            )
            assert {second.recv(9000) for _ in range(AT_ONCE)} == {b"x" * 8000}
            assert {first.recv(9000) for _ in range(AT_ONCE)} == {b"y" * 8000}
