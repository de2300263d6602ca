"""The engine between machines: torch.distributed, whose gloo moves bytes from memory to memory.

All that the rest of the package knows of it is `Mail`; another engine has the same three methods.

What is known of gloo: a receive that was posted can be neither cancelled nor asked whether it is done, only waited for,
and a wait that comes to its time limit breaks the connections to everybody, so waits are given a limit that never
comes. A connection that is closed ends the waits on it at once, and on no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from hogwild.errors import one_line

_NEVER = timedelta(days=365)
_PLACE = re.compile(r"^\[[^ \]]*:\d+\] ")
_TAGS = 1 << 24


class Mail(Protocol):
    """Messages between machines, in channels: the n-th that is sent in one is the n-th that is expected there."""

    def send(self, node: int, channel: int, number: int, message: Tensor) -> None:
        """Send a message; returns once it has left.

        Raises:
            ConnectionError: the other machine is gone.
        """
        ...

    def expect(self, node: int, channel: int, number: int, message: Tensor) -> Callable[[], None]:
        """Let a message come into that memory; what is returned waits for it.

        Raises:
            ConnectionError: the other machine is gone; here, or when it is waited for.
        """
        ...


class GlooMail:
    """`Mail` by gloo.

    Args:
        store: where the machines find each other; nobody else uses these keys of it.
        node: number of this machine.
        members: those of all that are to be connected, in an order that all know.
        patience: seconds for all connections to be made.

    Raises:
        ConnectionError: they could not be made.
    """

    def __init__(self, store: Store, node: int, members: Sequence[int], patience: float) -> None:
        self._rank = {member: rank for rank, member in enumerate(members)}
        try:
            self._group: Any = ProcessGroupGloo(store, self._rank[node], len(members), timedelta(seconds=patience))
        except Exception as error:
            others = ", ".join(str(member) for member in members if member != node)
            raise ConnectionError(f"no connection to machine {others}: {_said(error)}") from error

    def send(self, node: int, channel: int, number: int, message: Tensor) -> None:
        """Send a message; see `Mail`."""
        try:
            self._group.send([message], self._rank[node], _tag(channel, number)).wait(_NEVER)
        except RuntimeError as error:
            raise ConnectionError(_said(error)) from error

    def expect(self, node: int, channel: int, number: int, message: Tensor) -> Callable[[], None]:
        """Let a message come; see `Mail`."""
        try:
            work = self._group.recv([message], self._rank[node], _tag(channel, number))
        except RuntimeError as error:
            raise ConnectionError(_said(error)) from error

        def wait() -> None:
            try:
                work.wait(_NEVER)
            except RuntimeError as error:
                raise ConnectionError(_said(error)) from error

        return wait


def _said(error: Exception) -> str:
    """What gloo says, without the place in its source and what it takes to be typical."""
    return _PLACE.sub("", one_line(error)).partition(" This is typically ")[0].rstrip(".")


def _tag(channel: int, number: int) -> int:
    return channel * _TAGS + number % _TAGS
