"""A network on this machine alone, whose links are slow and can be cut, for programs that need know nothing of it.

    program at a host ── its device ──▶ relay: waits for the delay ──▶ another device ── program at another host
                                          drops what is due while that link is cut

A host is a network namespace of Linux without a name, with a TUN device of its own. The relay is a process that has
made all of them, and moves IP packets between their devices; nothing is left of them once it ends, however it does.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from hogwild.errors import ArgumentError
from hogwild.workers.process.spawn import begin_with_parent, make_process, start_context, start_process

_DEVICE = "hogwild0"  # at every host
_MTU = 9000  # bytes in a packet
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_TUN = "/dev/net/tun"
_MAKE, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI
_SET_ADDRESS, _SET_MASK, _SET_MTU, _GET_FLAGS, _SET_FLAGS = 0x8916, 0x891C, 0x8922, 0x8913, 0x8914
_UP = 1
_AT_ONCE = 64  # packets taken from a device before the others are looked at

Link = frozenset[int]


@dataclass(frozen=True)
class Host:
    """Where a program may be: its `address`, and how to get there."""

    address: str
    path: str  # of the namespace, while the network lives

    def enter(self) -> None:
        """Put this thread there, and what it starts from now on.

        Raises:
            OSError: it may not, or the network has ended.
        """
        namespace = os.open(self.path, os.O_RDONLY)
        try:
            _called("setns", namespace, _NEW_NETWORK)
        finally:
            os.close(namespace)

    def move_in(self) -> None:
        """Put this program there, before it has other threads; gloo is told of the device. Raises what `enter` does."""
        self.enter()
        os.environ["GLOO_SOCKET_IFNAME"] = _DEVICE


class Network:
    """Hosts, and the links between them, which are whole at first."""

    def __init__(self, hosts: list[Host], pipe: connection.Connection) -> None:
        self.hosts = hosts
        self._pipe = pipe
        self._cut: set[Link] = set()

    def cut(self, host: int, other: int | None = None) -> None:
        """Cut that host off from another, or from all; what is on its way is lost. Returns once it is so."""
        self._cut |= self._links(host, other)
        self._tell()

    def mend(self, host: int, other: int | None = None) -> None:
        """Mend its link to another, or all of them. Returns once it is so."""
        self._cut -= self._links(host, other)
        self._tell()

    def _links(self, host: int, other: int | None) -> set[Link]:
        others = range(len(self.hosts)) if other is None else (other,)
        return {frozenset((host, one)) for one in others if one != host}

    def _tell(self) -> None:
        self._pipe.send(self._cut)
        self._pipe.recv()


@contextmanager
def network(hosts: int, delay: float) -> Iterator[Network]:
    """A network of so many hosts, each of whose packets needs `delay` seconds to another one; it ends with the context.

    Raises:
        ArgumentError: it cannot be made here.
    """
    if not sys.platform.startswith("linux") or not Path(_TUN).exists():
        raise ArgumentError(f"slow links need network namespaces and {_TUN} of Linux, which are not here")
    here, there = start_context().Pipe()
    relay = make_process(_relay_main, (hosts, delay, there))
    if not start_process(relay):
        raise ArgumentError("the fork server was killed before there was a network")
    there.close()
    try:
        made = here.recv()
        if isinstance(made, str):
            raise ArgumentError(f"slow links need the rights of root, to make network namespaces and devices: {made}")
        paths = [f"/proc/{relay.pid}/fd/{namespace}" for namespace in made]
        yield Network([Host(_address(number), path) for number, path in enumerate(paths)], here)
    finally:
        relay.kill()
        relay.join()
        here.close()


def _address(host: int) -> str:
    return f"10.0.0.{host + 1}"


def _called(name: str, *arguments: int) -> None:
    """Call a function of the C library, which Python has from 3.12 on."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# --- in the relay's process


def _relay_main(hosts: int, delay: float, pipe: connection.Connection) -> None:
    begin_with_parent()
    try:
        made = [_made(_address(number)) for number in range(hosts)]
    except OSError as error:
        pipe.send(str(error))
        return
    pipe.send([namespace for namespace, _ in made])
    _Relay([device for _, device in made], delay, pipe).run()


def _made(address: str) -> tuple[int, int]:
    """A new host: its namespace and its device, as descriptors. This thread is there afterwards."""
    _called("unshare", _NEW_NETWORK)
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    name = _DEVICE.encode()
    fcntl.ioctl(device, _MAKE, struct.pack("16sH22x", name, _TUN_WITHOUT_HEADER))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for what, value in ((_SET_ADDRESS, address), (_SET_MASK, "255.255.255.0")):
            fcntl.ioctl(asked, what, struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(value)))
        fcntl.ioctl(asked, _SET_MTU, struct.pack("16si20x", name, _MTU))
        for one in (name, b"lo"):
            flags = struct.unpack("16sH22x", fcntl.ioctl(asked, _GET_FLAGS, struct.pack("16sH22x", one, 0)))[1]
            fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sH22x", one, flags | _UP))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY), device


class _Relay:
    """Moves packets between devices, each `delay` seconds after it came, and in that order."""

    def __init__(self, devices: list[int], delay: float, pipe: connection.Connection) -> None:
        self._devices = devices
        self._delay = delay
        self._pipe = pipe
        self._numbers = {device: number for number, device in enumerate(devices)}
        self._held: deque[tuple[float, int, bytes]] = deque()  # when each is due, and from whom it came
        self._cut: set[Link] = set()

    def run(self) -> None:
        """Until the pipe closes."""
        inputs = [*self._devices, self._pipe.fileno()]
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            ready = select.select(inputs, [], [], wait)[0]
            for one in ready:
                if one in self._numbers:
                    self._take(one)
            self._give()
            if self._pipe.fileno() in ready:
                try:
                    self._cut = self._pipe.recv()
                except EOFError:
                    return
                self._pipe.send(True)

    def _take(self, device: int) -> None:
        due, number = time.monotonic() + self._delay, self._numbers[device]
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                self._held.append((due, number, os.read(device, _MTU)))

    def _give(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            _, sender, packet = self._held.popleft()
            to = packet[19] - 1  # the last byte of the receiver's address
            known = packet[0] >> 4 == 4 and 0 <= to < len(self._devices)
            if known and frozenset((sender, to)) not in self._cut:
                os.write(self._devices[to], packet)
