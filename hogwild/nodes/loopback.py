"""Machines that are processes of one machine, which meet on loopback."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"
_PORTS = range(10_000, 32_000)  # below those that Linux and macOS give to whoever asks for none in particular
_TRIES = 100


def free_port() -> int:
    """A port of this machine on which nobody listens now, and that no other program is given by chance before somebody
    does.

    Raises:
        OSError: none is found.
    """
    draws = random.SystemRandom()
    for _ in range(_TRIES):
        port = draws.choice(_PORTS)
        with suppress(OSError), socket.socket() as found:
            found.bind((LOOPBACK, port))
            return port
    raise OSError(f"nobody may listen at any of {_TRIES} ports of {LOOPBACK} that were tried")


def environments_of(nodes: int) -> list[dict[str, str]]:
    """What each of so many machines finds in its environment, as torchrun would set it."""
    port = str(free_port())
    together = {"WORLD_SIZE": str(nodes), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    return [{**together, "RANK": str(node)} for node in range(nodes)]
