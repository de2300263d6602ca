"""How a machine is told where the others meet: by torchrun, in the environment, or by `--nodes` and `--join`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hogwild.errors import ArgumentError, one_line

TOKEN = "HOGWILD_TOKEN"
_MOST_NODES = 63  # those that live are bits of one word


@dataclass(frozen=True)
class Invitation:
    """Where machines meet.

    Attributes:
        nodes: how many.
        host, port: of the store.
        node: the number of this one; None: whoever comes first is 0.
        hosted: somebody else hosts the store.
        attempt: how often torchrun has restarted all of them.
        token: the secret that all must have.
        timeout: seconds after which a machine that says nothing is lost.

    Raises:
        ArgumentError: the timeout is not above 0, or there are more machines than a run can have.
    """

    nodes: int
    host: str
    port: int
    node: int | None = None
    hosted: bool = False
    attempt: int = 0
    token: str = ""
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ArgumentError(f"node_timeout {self.timeout} is not above 0; 5 seconds is a good start")
        if self.nodes > _MOST_NODES:
            raise ArgumentError(f"{self.nodes} machines are over the {_MOST_NODES} that one run can have")


def invitation_from_environment(token: str | None, timeout: float) -> Invitation | None:
    """That of torchrun; None where this process is none of several that it started.

    Raises:
        ArgumentError: its variables are incomplete.
    """
    found = os.environ
    if found.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        invitation = Invitation(
            nodes=int(found["WORLD_SIZE"]),
            host=found["MASTER_ADDR"],
            port=int(found["MASTER_PORT"]),
            node=int(found["RANK"]),
            hosted=found.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=int(found.get("TORCHELASTIC_RESTART_COUNT", "0")),
            token=found.get(TOKEN, "") if token is None else token,
            timeout=timeout,
        )
        if not 0 <= int(found["RANK"]) < invitation.nodes:
            raise ValueError(f"RANK {found['RANK']}")
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"WORLD_SIZE is {found['WORLD_SIZE']!r}, and {one_line(error)} is not as torchrun sets it; it sets RANK, "
            f"WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all four (unset WORLD_SIZE to train on one machine)"
        ) from None
    return invitation


def refuse_torchrun(what: str, instead: str) -> None:
    """Refuse what would be done by each machine that torchrun started, alone.

    Raises:
        ArgumentError: it started several, and this process is one of them.
    """
    nodes = os.environ.get("WORLD_SIZE", "1")
    if nodes != "1":
        raise ArgumentError(f"{what} is for one machine, and WORLD_SIZE is {nodes!r}, as torchrun sets it; {instead}")


def invitation_to(nodes: int, address: str, token: str | None, timeout: float) -> Invitation:
    """The invitation that `--nodes` and `--join` are.

    Raises:
        ArgumentError: the address is not a host and a port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ArgumentError(f"--join {address!r} is not HOST:PORT; 10.0.0.1:29500 is, on every machine the same")
    if nodes < 2:
        raise ArgumentError(f"--join given for {nodes} machine; --nodes says how many join each other, 2 or more")
    token = os.environ.get(TOKEN, "") if token is None else token
    return Invitation(nodes, host.strip("[]"), int(port), token=token, timeout=timeout)
