"""What the courier's process does, from its start to its end; see `hogwild.nodes.courier`, and `averager` beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hogwild.errors import NodeError, one_line
from hogwild.nodes.arrival import ArrivingCourier
from hogwild.nodes.averager import Averager
from hogwild.nodes.courier import PAIRING, Courier
from hogwild.nodes.gloo import GlooMail, Mail
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.meeting import connect
from hogwild.nodes.peer import Back, Lost
from hogwild.shared.arena import Arena
from hogwild.shared.state import SharedState, StatePlan
from hogwild.workers.process.spawn import begin_with_parent

_FORMING = 120.0  # seconds for the couriers to find each other


@dataclass(frozen=True)
class Ready:
    """The courier of a machine that comes back is there, and waits to be told who lives."""


@dataclass(frozen=True)
class Connected:
    """The couriers of all machines are connected, where the run begins: each sees by itself now who is lost."""


@dataclass(frozen=True)
class Begun:
    """The courier of a machine that comes back has laid down a version, of a run of so many tickets."""

    version: int
    total: int


@dataclass(frozen=True)
class Ended:
    """The courier has ended: all machines have all versions, or `why` it cannot go on."""

    why: str = ""


Told = Lost | Back | Ready | Begun | Ended
"""What the courier tells its parent."""


@dataclass(frozen=True)
class Rendezvous:
    """Where couriers find each other: by the invitation, under the `prefix` of the run's keys in the store.

    `returns` is the number of this machine among those that came back, or 0 where it was there from the beginning.
    """

    invitation: Invitation
    prefix: str
    node: int
    returns: int

    def all(self) -> dict[int, Mail]:
        """Connections to all machines, where the run begins; raises a ConnectionError."""
        store = PrefixStore(f"{self.prefix}/couriers", connect(self.invitation))
        everybody = range(self.invitation.nodes)
        mail = GlooMail(store, self.node, everybody, _FORMING)
        return {node: mail for node in everybody if node != self.node}

    def pair(self, lives: int, comes: int, number: int) -> GlooMail:
        """A connection between one that lives and one that comes back, the so-manieth; raises a ConnectionError."""
        store = PrefixStore(f"{self.prefix}/return {number}/{lives}", connect(self.invitation))
        return GlooMail(store, self.node, (lives, comes), PAIRING)

    def pairs(self, living: Sequence[int]) -> dict[int, Mail]:
        """Connections of this machine, which comes back, to those of these that still live; raises a NodeError."""

        def formed(lives: int) -> GlooMail | None:
            with suppress(ConnectionError):
                return self.pair(lives, self.node, self.returns)
            return None

        with ThreadPoolExecutor(len(living)) as pool:
            mails = dict(zip(living, pool.map(formed, living), strict=True))
        if mails[0] is None:
            raise NodeError(f"no connection to machine 0 within {PAIRING:g} s")
        return {node: mail for node, mail in mails.items() if mail is not None}


def courier_main(
    plan: StatePlan, arena: Arena, start: int, per_update: int, meeting: Rendezvous, pipe: connection.Connection
) -> None:
    """Connect to the couriers of the other machines, and carry gradients, or have values averaged where machines train
    apart.

    The process ends without destructors, which may wait for machines that are gone.
    """
    begin_with_parent()
    torch.set_num_threads(1)
    try:
        state = SharedState(plan, arena)
        state.locks.give(state.control)
        if plan.dealing.averages is not None:
            Averager(state, per_update, _connected(meeting, pipe), meeting.invitation.timeout, pipe.send).run()
        else:
            _carry(state, start, per_update, meeting, pipe)
        pipe.send(Ended())
    except (ConnectionError, NodeError) as error:
        pipe.send(Ended(one_line(error)))
    except BaseException as error:
        pipe.send(Ended(f"{type(error).__name__}: {one_line(error)}"))
    os._exit(0)


def _connected(meeting: Rendezvous, pipe: connection.Connection) -> dict[int, Mail]:
    """Connections to all machines, of which the parent is told."""
    mails = meeting.all()
    pipe.send(Connected())
    return mails


def _carry(state: SharedState, start: int, per_update: int, meeting: Rendezvous, pipe: connection.Connection) -> None:
    """Carry gradients, from the version on that this machine begins with, or that it is brought."""
    timeout = meeting.invitation.timeout
    if meeting.returns:
        pipe.send(Ready())
        mails = meeting.pairs(pipe.recv())
        courier: Courier = (arriving := ArrivingCourier(state, per_update, mails, timeout, pipe.send))
        brought = arriving.arrive()
        start = brought.version
        pipe.send(Begun(start, brought.total))
    else:
        courier = Courier(state, per_update, _connected(meeting, pipe), timeout, pipe.send)
    threading.Thread(target=_let_in, args=(courier, meeting, pipe), daemon=True).start()
    courier.run(start)


def _let_in(courier: Courier, meeting: Rendezvous, pipe: connection.Connection) -> None:
    """Connect to machines that come back, as the parent tells; in threads, for the courier goes on."""
    newest: dict[int, int] = {}
    kept: list[GlooMail] = []  # connections to those that came in vain, whose ends are not waited for

    def connect_to(node: int, number: int) -> None:
        mail: GlooMail | None = None
        with suppress(ConnectionError):
            mail = meeting.pair(meeting.node, node, number)
            kept.append(mail)
        if newest[node] == number:
            courier.connect(node, mail)

    with suppress(EOFError, OSError):
        while True:
            node, number = pipe.recv()
            newest[node] = number
            threading.Thread(target=connect_to, args=(node, number), daemon=True).start()
