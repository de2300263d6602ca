"""How a machine is told where the others meet: by torchrun, in the environment, or by `--nodes` and `--join`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from numbers import Real
from typing import Any

from hogwild.errors import ArgumentError, a_type, one_line

TOKEN = "HOGWILD_TOKEN"
_MOST_NODES = 63  # those that live are bits of one word
_PORTS = range(1, 1 << 16)


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
        ArgumentError: the timeout is no number above 0, or the token no text, or there are more machines than a run can
            have.
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
        _refuse_what_is_none(self.token, self.timeout)
        if self.nodes > _MOST_NODES:
            raise ArgumentError(f"{self.nodes} machines are over the {_MOST_NODES} that one run can have")


def _refuse_what_is_none(token: Any, timeout: Any) -> None:
    """Refuse what is no secret, and what is no time."""
    if not (token is None or isinstance(token, str)):
        raise ArgumentError(f"token is {a_type(token)}; it must be text, the same on all machines")
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if not is_number:
        raise ArgumentError(f"node_timeout {timeout!r} is {a_type(timeout)}; it must be a number of seconds, such as 5")
    if not (timeout > 0 and math.isfinite(timeout)):
        what = "above 0" if not timeout > 0 else "finite"
        raise ArgumentError(f"node_timeout {timeout} is not {what}; 5 seconds is a good start")


def refuse_no_secret(token: Any, name: str) -> None:
    """Refuse a secret that was given, and is empty, for nobody would be kept out.

    Raises:
        ArgumentError: it is.
    """
    if token == "":
        raise ArgumentError(f"{name} is empty, and would keep nobody out; give a secret, or leave it out")


def invitation_from_environment(token: str | None, timeout: float) -> Invitation | None:
    """That of torchrun; None where this process is none of several that it started.

    Raises:
        ArgumentError: its variables are incomplete.
    """
    refuse_no_secret(token, "token ''")
    _refuse_what_is_none(token, timeout)  # also where one machine trains, so that a script works on several
    found = os.environ
    if found.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        nodes, host, port = int(found["WORLD_SIZE"]), found["MASTER_ADDR"], int(found["MASTER_PORT"])
        node, attempt = int(found["RANK"]), int(found.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if not 0 <= node < nodes:
            raise ValueError(f"RANK {node}")
        if port not in _PORTS:
            raise ValueError(f"MASTER_PORT {port}")
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"WORLD_SIZE is {found['WORLD_SIZE']!r}, and {one_line(error)} is not as torchrun sets it; it sets RANK, "
            f"WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all four (unset WORLD_SIZE to train on one machine)"
        ) from None
    hosted = found.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    token = found.get(TOKEN, "") if token is None else token
    return Invitation(nodes, host, port, node, hosted, attempt, token, timeout)


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
    if not host or not port.isdecimal() or int(port) not in _PORTS:
        raise ArgumentError(f"--join {address!r} is not HOST:PORT; 10.0.0.1:29500 is, on every machine the same")
    if nodes < 2:
        raise ArgumentError(f"--join given for {nodes} machine; --nodes says how many join each other, 2 or more")
    token = os.environ.get(TOKEN, "") if token is None else token
    return Invitation(nodes, host.strip("[]"), int(port), token=token, timeout=timeout)
