"""Where machines meet: the store of torch.distributed, which one of them hosts and the others reach.

invitation → is the address one of this machine, and free? → host it : wait until somebody does → store, number
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue

from torch.distributed import DistError, Store, TCPStore  # type: ignore[attr-defined]

from hogwild.errors import ArgumentError, one_line, printable
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.store_calls import of_store

MEETING = 300.0  # seconds for all machines to come
_ANSWERING = 20.0  # seconds for the store to answer, once somebody listens
_TRYING, _ASK_EVERY = 2.0, 0.2  # seconds for one try to connect, and between two
_TELLING = 5.0  # seconds of waiting before it is told that one waits
_stores: dict[tuple[str, int], Store] = {}  # those that this process has opened, which live as long as it does
_nodes_here: dict[tuple[str, int], int] = {}  # the number of this machine there
_left: list[Store] = []  # those that were given up, which live on too
_log = logging.getLogger("hogwild")


def connect(invitation: Invitation) -> Store:
    """The store of an invitation that was accepted, for another process of the same machine."""
    return _client(invitation)


def open_store(invitation: Invitation) -> tuple[Store, int | None]:
    """The store, and the number of this machine; None where all had come before.

    Raises:
        ArgumentError: nobody hosts it, or it cannot be hosted here, or it is that of another number of machines.
    """
    place = invitation.host, invitation.port
    node = invitation.node
    if place in _stores:
        store = _stores[place]
        return store, _nodes_here[place] if node is None else node
    if invitation.hosted or (node is not None and node > 0):
        store = _client(invitation)
        _refuse_another_number(store, invitation)
        if store.add(f"hogwild/{invitation.attempt}/came/{node}", 1) > 1:
            return store, None
    elif node == 0:
        store = _host(invitation)
        _refuse_another_number(store, invitation)
    else:
        store, node = _first_or_next(invitation)
    if node is not None:
        keep_store(invitation, store, node)
    return store, node


def keep_store(invitation: Invitation, store: Store, node: int) -> None:
    """The store that this process meets others at from now on, and its number there."""
    place = invitation.host, invitation.port
    _stores[place], _nodes_here[place] = store, node


def give_up(invitation: Invitation) -> None:
    """Open the store anew when it is next asked for."""
    place = invitation.host, invitation.port
    if (store := _stores.pop(place, None)) is not None:
        _left.append(store)
    _nodes_here.pop(place, None)


def _refuse_another_number(store: Store, invitation: Invitation) -> None:
    """Refuse to meet machines that were told of another number of them.

    Raises:
        ArgumentError: they were.
    """
    own = str(invitation.nodes)
    told = store.compare_set(f"hogwild/{invitation.attempt}/nodes", "", own).decode(errors="replace")
    if told != own:
        raise ArgumentError(
            f"this machine is one of {own}, and those that meet at {invitation.host}:{invitation.port} are "
            f"{printable(told, 20)}; give all of them the same number"
        )


def _host(invitation: Invitation) -> Store:
    try:
        return TCPStore(
            invitation.host, invitation.port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
    except DistError as error:
        raise ArgumentError(
            f"machine 0 cannot listen at {invitation.host}:{invitation.port}: {one_line(error)}"
        ) from error


def _client(invitation: Invitation) -> Store:
    """The store that somebody else hosts. Until it answers Ctrl-C is heard, which torch would not do."""
    place = f"{invitation.host}:{invitation.port}"
    _await_somebody(invitation, place)
    opened: SimpleQueue[Store | Exception] = SimpleQueue()
    threading.Thread(target=_open, args=(invitation, opened.put), daemon=True).start()
    deadline = time.monotonic() + 2 * _ANSWERING
    while time.monotonic() < deadline:
        with suppress(Empty):
            found = opened.get(timeout=_ASK_EVERY)
            if isinstance(found, Exception):
                raise ArgumentError(f"what listens at {place} is no store of a run: {one_line(found)}") from found
            found.set_timeout(timedelta(seconds=MEETING))
            return found
    raise ArgumentError(f"what listens at {place} does not answer as the store of a run does; another port is free?")


def _open(invitation: Invitation, tell: Callable[[Store | Exception], None]) -> None:
    limit = timedelta(seconds=_ANSWERING)
    try:
        with of_store():
            store = TCPStore(invitation.host, invitation.port, is_master=False, wait_for_workers=False, timeout=limit)
    except Exception as error:  # a foreign service may answer anything
        tell(error)
    else:
        tell(store)


def _await_somebody(invitation: Invitation, place: str) -> None:
    """Wait until somebody listens there.

    Raises:
        ArgumentError: nobody does in the time that all machines have to come.
    """
    began, why, told = time.monotonic(), "", False
    while time.monotonic() < began + MEETING:
        try:
            socket.create_connection((invitation.host, invitation.port), timeout=_TRYING).close()
        except OSError as error:  # also where its host has no address yet, as one that a cluster is about to start
            why = error.strerror or one_line(error)
        else:
            return
        if not told and time.monotonic() > began + _TELLING:
            told = True
            _log.warning("waiting for machine 0 at %s, %g s at most (%s)", place, MEETING, why)
        time.sleep(_ASK_EVERY)
    raise ArgumentError(f"nobody listens at {place} within {MEETING:g} s: {why}")


def _first_or_next(invitation: Invitation) -> tuple[Store, int | None]:
    """Whoever is at the address and comes first hosts the store, and is machine 0."""
    if _is_here_and_free(invitation.host, invitation.port):
        with suppress(ArgumentError):  # somebody else of this machine was faster
            store = _host(invitation)
            _refuse_another_number(store, invitation)
            return store, 0
    store = _client(invitation)
    _refuse_another_number(store, invitation)
    node = store.add("hogwild/machines", 1)
    return store, node if node < invitation.nodes else None


def _is_here_and_free(host: str, port: int) -> bool:
    """True where the address is one of this machine, and nobody listens there."""
    addresses = []
    with suppress(socket.gaierror):  # it is another machine, if any
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            return True
    return False
