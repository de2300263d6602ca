"""The machines of one run: how they meet, what they tell each other before it, and what is decided for all.

    invitation (environment of torchrun, or --nodes and --join) → store of torch.distributed → secret → Party

All of it goes through the store, which machine 0 hosts, or torchrun's agent there. What is told is JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hogwild.errors import ArgumentError, NodeError, printable, with_type
from hogwild.nodes.invitation import TOKEN, Invitation, invitation_from_environment
from hogwild.nodes.meeting import MEETING, give_up, keep_store, open_store
from hogwild.nodes.returning import NO_PLACE, take_place
from hogwild.nodes.store_calls import of_store

_UNREACHED = "the store of machine 0 cannot be reached"
_LEFT = "left"
_TELLING = 5.0  # seconds of waiting for others to come before it is told that one waits
_LEAVING = 5.0  # seconds for the others to hear that nothing comes of it
_LOOK_EVERY = 0.02
_ALIVE = "alive"
_BEAT = 1.0  # seconds between two signs of life of a machine that prepares
_SILENT = 60.0  # seconds without one, after which it is waited for no more; something long may hold the interpreter
_MOST_TOLD = 1 << 22  # bytes of JSON
_log = logging.getLogger("hogwild")
_met: dict[tuple[str, int], int] = {}  # the number of the last run that has met there


class Party:
    """The machines of one run, as one of them sees them.

    Attributes:
        invitation: by which they met.
        node: the number of this one.
        prefix: how the keys of this run begin in the store.
        crews: how many workers each machine has, once that is told.
        lost: the machines that were lost while they trained.
        returns: this machine comes back to a run: its number among those that did, from 1; else 0.
        trains: this machine is ready to train, and the others see by themselves when it ends.
    """

    def __init__(self, invitation: Invitation, node: int, store: Store, prefix: str) -> None:
        self.invitation = invitation
        self.node = node
        self.prefix = prefix
        self.crews: dict[int, int] = {}
        self.lost: set[int] = set()
        self.returns = 0
        self.trains = False
        self._gone = threading.Event()
        self._store = PrefixStore(prefix, store)

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return self.invitation.nodes

    @property
    def leads(self) -> bool:
        """True on the machine that evaluates, decides and keeps the record."""
        return self.node == 0

    def tell(self, what: str, value: Any) -> None:
        """Tell all machines something, as JSON, once."""
        with of_store(_UNREACHED):
            self._store.set(f"{what}/{self.node}", json.dumps(value))

    def draw(self, what: str) -> int:
        """A number that nobody else draws, from 1."""
        return self._added(what, 1)

    def drawn(self, what: str) -> int:
        """How many have drawn one."""
        return self._added(what, 0)

    def proof(self, who: object, said: Sequence[Any]) -> str:
        """What proves that it knows the secret, by numbers used once, in hexadecimal."""
        text = f"{who} {json.dumps([self.prefix, *said])}"
        return hmac.new(self.invitation.token.encode(), text.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, told: Any, who: object, said: Sequence[Any]) -> bool:
        """True where that was told which `proof` gives."""
        return hmac.compare_digest(str(told), self.proof(who, said))

    def _added(self, what: str, amount: int) -> int:
        with of_store(_UNREACHED):
            return int(self._store.add(what, amount))

    def hear(self, what: str, node: int) -> Any:
        """What that machine has told; None where it has not yet."""
        key = f"{what}/{node}"
        with of_store(_UNREACHED):
            if not self._store.check([key]):
                return None
            told = self._store.get(key)
        if len(told) > _MOST_TOLD:
            raise NodeError(f"machine {node} told {len(told)} bytes of {what}")
        return json.loads(told)

    def hear_all(
        self, what: str, patience: float, nodes: Iterable[int] | None = None, *, warns_after: float = math.inf
    ) -> dict[int, Any]:
        """What all machines have told, or those; it is waited for so many seconds, and after some it is said for whom.

        Raises:
            NodeError: one has not, or has left.
        """
        wanted = set(range(self.nodes) if nodes is None else nodes)
        found = self.hear_some(what, patience, wanted, warns_after=warns_after)
        if missing := wanted - found.keys():
            names = ", ".join(map(str, sorted(missing)))
            raise NodeError(f"machine {names} of {self.nodes} did not come within {patience:g} s ({what})")
        return found

    def hear_some(
        self, what: str, patience: float, nodes: Iterable[int], *, warns_after: float = math.inf
    ) -> dict[int, Any]:
        """What those machines have told within so many seconds.

        Raises:
            NodeError: one has left before it trained, or gives no sign of life any more.
        """
        missing, found, beats = set(nodes), {}, _Beats()
        deadline, warns = time.monotonic() + patience, time.monotonic() + warns_after
        while missing:
            for node in sorted(missing):
                told = self.hear(what, node)
                if told is not None:
                    found[node] = told
            missing -= found.keys()
            if what != _LEFT and not self.trains:
                self._refuse_left(missing, what)
                self._refuse_silent(missing, beats)
            if missing and time.monotonic() > deadline:
                break
            if missing and time.monotonic() > warns:
                warns = math.inf
                self._warn_of_waiting(missing, patience)
            if missing:
                time.sleep(_LOOK_EVERY)
        return found

    def _warn_of_waiting(self, missing: Iterable[int], patience: float) -> None:
        names, where = ", ".join(map(str, sorted(missing))), f"{self.invitation.host}:{self.invitation.port}"
        _log.warning("waiting for machine %s of %d at %s, %g s at most", names, self.nodes, where, patience)

    def _refuse_left(self, missing: Iterable[int], what: str) -> None:
        for node in missing:
            if (why := self.why_left(node)) is not None and self.hear(what, node) is None:  # which it told before
                raise NodeError(f"machine {node} of {self.nodes} has left: {printable(why, 400)}")

    def live(self) -> None:
        """Give a sign of life now and then, in a thread of its own, until this machine trains or leaves."""

        def live() -> None:
            with suppress(NodeError):
                while not (self.trains or self._gone.wait(_BEAT)):
                    self._added(alive, 1)

        alive = f"{_ALIVE}/{self.node}"
        self._added(alive, 1)
        threading.Thread(target=live, daemon=True).start()

    def _refuse_silent(self, missing: Iterable[int], beats: _Beats) -> None:
        """`beats` are the signs of life that were seen; who has given none yet is still to come."""
        if not beats.are_due():
            return
        for node in missing:
            if beats.stand_still(node, self._added(f"{_ALIVE}/{node}", 0)):
                raise NodeError(f"machine {node} of {self.nodes} has given no sign of life for {_SILENT:g} s")

    def leave(self, why: str = "it was interrupted") -> None:
        """Say that this machine ends; on machine 0, wait a moment until the others have. Where that one was lost, there
        is nobody to tell; nobody waits for one that was about to come back."""
        if self._gone.is_set():  # it has said so: whoever was called within another says it once
            return
        self._gone.set()
        if 0 in self.lost or (self.returns and not self.trains):
            return
        with suppress(NodeError):
            self.tell(_LEFT, why)
            if self.leads:
                self.hear_some(_LEFT, _LEAVING, set(range(self.nodes)) - self.lost)

    def why_left(self, node: int) -> Any:
        """Why a machine has left; None where it has not said so."""
        return self.hear(_LEFT, node)

    def decide(self, what: str, value: Any) -> Any:
        """What is decided for all: the value of whoever came first."""
        text = json.dumps(value)
        with of_store(_UNREACHED):
            return json.loads(self._store.compare_set(f"decided/{what}", "", text))

    def decided(self, what: str) -> Any:
        """What was decided; None where nothing is yet."""
        key = f"decided/{what}"
        with of_store(_UNREACHED):
            return json.loads(self._store.get(key)) if self._store.check([key]) else None


class _Beats:
    """The signs of life of other machines, as one that waits for them sees them."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._since: dict[int, tuple[int, float]] = {}

    def are_due(self) -> bool:
        """True once every so often."""
        due = time.monotonic() > self._looked + _BEAT
        self._looked = time.monotonic() if due else self._looked
        return due

    def stand_still(self, node: int, count: int) -> bool:
        """True where that machine has given so many, and no more for too long."""
        before, since = self._since.setdefault(node, (count, self._looked))
        if count != before:
            self._since[node] = count, self._looked
        return 0 < count == before and self._looked > since + _SILENT


@contextmanager
def leaving_together(party: Party | None) -> Iterator[None]:
    """Inside, what is raised before this machine trains is heard by the others, which wait for it. What is raised on
    machine 0 is raised once they have: the store ends with it."""
    try:
        yield
    except BaseException as error:
        if party is not None and not party.trains:
            party.leave(with_type(error))
        raise


def meet(invitation: Invitation) -> Party:
    """Meet the other machines; returns once all are there and have the same secret. Where all have met already, and one
    of them was lost, this machine takes its place.

    Raises:
        ArgumentError: the address cannot be reached, a machine has another secret, or there is no place.
        NodeError: not all came.
    """
    place = invitation.host, invitation.port
    store, node = open_store(invitation)
    prefix = f"hogwild/{invitation.attempt}"
    if node is None:
        number = _met[place] = int(store.get(f"{prefix}/run")) if store.check([f"{prefix}/run"]) else 0
        party = Party(invitation, NO_PLACE, store, f"{prefix}/{number}")
        take_place(party, invitation.node)
        keep_store(invitation, store, party.node)
        return party
    number = _met[place] = _met.get(place, -1) + 1
    party = Party(invitation, node, store, f"{prefix}/{number}")
    with leaving_together(party):
        _check_secret(party)
    party.live()
    if party.leads:
        store.set(f"{prefix}/run", str(number))
    return party


def forget(invitation: Invitation) -> None:
    """This machine was cut off: where it meets the others again, it comes back."""
    give_up(invitation)
    _met.pop((invitation.host, invitation.port), None)


def party_from_environment(token: str | None, timeout: float) -> Party | None:
    """The machines that torchrun started, once they have met; None where there is one.

    Raises:
        ArgumentError, NodeError: see `meet`.
    """
    invitation = invitation_from_environment(token, timeout)
    return meet(invitation) if invitation is not None else None


def _check_secret(party: Party) -> None:
    """Tell a number that is used once, and prove by all of them that the secret is known, without telling it."""
    own = secrets.token_hex(16)
    party.tell("nonce", own)
    heard = party.hear_all("nonce", MEETING, warns_after=_TELLING)
    nonces = {**heard, party.node: own}  # whatever the store says that it was
    said = [nonces[node] for node in range(party.nodes)]
    party.tell("proof", party.proof(party.node, said))
    proofs = party.hear_all("proof", MEETING)
    wrong = [node for node in range(party.nodes) if not party.is_proof(proofs[node], node, said)]
    if wrong:
        raise ArgumentError(
            f"machine {', '.join(map(str, wrong))} has another token than machine {party.node}; --token, or "
            f"{TOKEN} in the environment, must be the same on all machines"
        )
