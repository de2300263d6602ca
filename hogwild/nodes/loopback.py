"""Machines that are processes of one machine, which meet on loopback."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port


def environments_of(nodes: int) -> list[dict[str, str]]:
    """What each of so many machines finds in its environment, as torchrun would set it."""
    port = str(free_port())
    together = {"WORLD_SIZE": str(nodes), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    return [{**together, "RANK": str(node)} for node in range(nodes)]
