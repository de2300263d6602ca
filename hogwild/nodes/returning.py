"""What is said at the store where a machine comes back to a run: before it prepares, and before it is connected.

    it        draws a number, and asks: for the place of machine k, or of any that is lost
    machine 0                                                     gives it a place that is lost, or says why not
    it        prepares, and is ready: a number used once
    machine 0                                                     says who lives; one machine is let in at a time
    all that live                                                 a number used once, each
    it        proves by all of these that it knows the secret
    all that live                                                 prove it too, each, and connect with it

Whoever asks later for the same place has it, so one that was killed on its way is in nobody's.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hogwild.errors import ArgumentError, NodeError

if TYPE_CHECKING:
    from hogwild.nodes.party import Party

TRAINS, ENDED = "trains", "ended"  # decided by machine 0 once a run has begun, and once it has ended
_ASKED = "returns"  # how many have asked
_ANSWERING = 30.0  # seconds that machine 0 may take beside the time after which a machine is lost
_PROVING, _ARRIVING = 60.0, 600.0  # seconds for one machine, before the next one is let in
_LOOK_EVERY = 0.02
NO_PLACE = -1
_log = logging.getLogger("hogwild")


# --- the machine that comes


def take_place(party: Party, wish: int | None) -> None:
    """Take the place of a machine that was lost: that of machine `wish`, if it is not None.

    Raises:
        ArgumentError: there is none.
        NodeError: machine 0 does not answer.
    """
    invitation = party.invitation
    where = f"{invitation.host}:{invitation.port}"
    if wish == 0:
        raise ArgumentError(
            f"machine 0 cannot come back to {where}: it decides and keeps the record, and the run ended with it; go on "
            f"from its last checkpoint (resume)"
        )
    if party.decided(TRAINS) is None or party.decided(ENDED) is not None:
        what = f"machine {wish} came again" if wish is not None else f"more than {party.nodes} machines came"
        raise ArgumentError(f"{what} to {where}; --nodes is {party.nodes}, and no run trains there that has lost one")
    party.returns = number = party.draw(_ASKED)
    party.decide(f"return {number} asks", {"node": wish})
    patience = _ANSWERING + 2 * invitation.timeout
    place = _awaited(party, f"return {number} place", patience)
    if place["refused"]:
        raise ArgumentError(f"this machine cannot join the run at {where}: {place['refused']}")
    party.node = place["node"]


def be_let_in(party: Party) -> list[int]:
    """Say that this machine is ready, and prove that it knows the secret; returns those that live, who do too.

    Raises:
        ArgumentError: one of them has another secret.
        NodeError: one does not answer, or another machine took the place.
    """
    number = party.returns
    own = secrets.token_hex(16)
    party.decide(f"return {number} ready", own)
    patience = _PROVING + _ARRIVING + 2 * party.invitation.timeout
    living = _awaited(party, f"return {number} living", patience)
    if not living:
        raise NodeError(f"another machine has taken the place of machine {party.node}")
    nonces = party.hear_all(f"return {number} nonce", _ANSWERING, living)
    said = [number, party.node, own, *(nonces[node] for node in living)]
    party.decide(f"return {number} proof", party.proof("it", said))
    proofs = party.hear_all(f"return {number} proof", _ANSWERING, living)
    wrong = [node for node in living if not party.is_proof(proofs[node], node, said)]
    if wrong:
        raise ArgumentError(
            f"machine {', '.join(map(str, wrong))} has another token than this one, which comes back; it must be the "
            f"same on all machines"
        )
    return list(living)


def _awaited(party: Party, what: str, patience: float) -> Any:
    deadline = time.monotonic() + patience
    while (found := party.decided(what)) is None:
        if party.decided(ENDED) is not None:
            raise NodeError("the run that this machine was to come back to has ended")
        if time.monotonic() > deadline:
            raise NodeError(f"machine 0 gave no answer within {patience:g} s ({what}); its run may have ended")
        time.sleep(_LOOK_EVERY)
    return found


# --- those that live


class Door:
    """Lets machines come back, on one that lives.

    Args:
        party: of this machine.
        living: the machines that live, as bits.
    """

    def __init__(self, party: Party, living: Callable[[], int]) -> None:
        self._party = party
        self._living = living
        self._seen = 0  # how many have asked that it knows of
        self._open: set[int] = set()  # those of them that are not dealt with
        self._places: dict[int, int] = {}  # who was given which place
        self._since: dict[int, float] = {}  # when those were seen that have none
        self._nonces: dict[int, str] = {}
        self._last: tuple[int, float] = NO_PLACE, 0.0  # the machine that is being let in, and until when

    def look(self) -> list[tuple[int, int]]:
        """(machine, its number among those that came back), for each that is to be connected with now."""
        asked = self._party.drawn(_ASKED)
        self._open |= set(range(self._seen + 1, asked + 1))
        self._seen = asked
        return [found for number in sorted(self._open) if (found := self._understood(number)) is not None]

    def _understood(self, number: int) -> tuple[int, int] | None:
        """The same of one; whoever says what nobody says that comes back is not heard any more."""
        try:
            return self._see_to(number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._open.discard(number)
            self._places[number] = NO_PLACE
            _log.warning("what asked to come back as number %d is no machine of this run: %r", number, error)
            return None

    def done_with(self, node: int) -> None:
        """That machine was lost on its way, or is back: the next one may be let in."""
        if self._last[0] == node:
            self._last = NO_PLACE, 0.0

    def _see_to(self, number: int) -> tuple[int, int] | None:
        if number not in self._places and not self._learns_place(number):
            return None
        node = self._places[number]
        if node == NO_PLACE or any(n > number and other == node for n, other in self._places.items()):
            if self._party.leads and node != NO_PLACE:
                self._party.decide(f"return {number} living", [])
            self._open.discard(number)
            return None
        living = self._party.decided(f"return {number} living")
        if living is None and self._party.leads:
            self._let_in(number, node)
        if living is None:
            return None
        if self._party.node in living:
            return self._prove(number, node, living)
        self._open.discard(number)
        return None

    def _learns_place(self, number: int) -> bool:
        place = self._party.decided(f"return {number} place")
        if place is None and self._party.leads:
            place = self._given(number)
        if place is not None:
            self._places[number] = NO_PLACE if place["refused"] else int(place["node"])
        return place is not None

    def _prove(self, number: int, node: int, living: Sequence[int]) -> tuple[int, int] | None:
        """Once it has proved that it knows the secret, prove that too, and let it be connected."""
        party = self._party
        if number not in self._nonces:
            self._nonces[number] = secrets.token_hex(16)
            party.tell(f"return {number} nonce", self._nonces[number])
        told = party.decided(f"return {number} proof")
        if told is None:
            return None
        self._open.discard(number)
        nonces = [party.hear(f"return {number} nonce", other) for other in living]
        nonces[living.index(party.node)] = self._nonces[number]
        said = [number, node, party.decided(f"return {number} ready"), *nonces]
        knows = party.is_proof(told, "it", said)
        party.tell(f"return {number} proof", party.proof(party.node, said) if knows else "")
        self._last = (node, time.monotonic() + _ARRIVING) if knows else (NO_PLACE, 0.0)
        return (node, number) if knows else None

    # --- machine 0

    def _given(self, number: int) -> dict[str, Any] | None:
        """The place that it gets, or why none; None where that is still to be seen."""
        party, told = self._party, self._party.decided(f"return {number} asks")
        if told is None:
            return None
        wish = told["node"]
        asked = self._since.setdefault(number, time.monotonic())
        lost = [node for node in range(1, party.nodes) if not self._living() >> node & 1]
        wanted = [node for node in lost if wish in (None, node)]
        place: dict[str, Any] | None = None
        if wanted:
            newest = {node: max((n for n, k in self._places.items() if k == node), default=0) for node in wanted}
            place = {"refused": "", "node": min(wanted, key=lambda node: newest[node])}
        elif time.monotonic() > asked + party.invitation.timeout + 1:  # one may be dead, and nobody has seen it yet
            there = f"machine {wish} is there" if wish is not None else f"all {party.nodes} machines are there"
            place = {"refused": f"{there}, and none is lost"}
        return None if place is None else party.decide(f"return {number} place", place)

    def _let_in(self, number: int, node: int) -> None:
        last, until = self._last
        living = self._living()
        busy = last not in (NO_PLACE, node) and not living >> last & 1 and time.monotonic() < until
        if busy or self._party.decided(f"return {number} ready") is None:
            return
        self._last = node, time.monotonic() + _PROVING
        others = [other for other in range(self._party.nodes) if living >> other & 1 and other != node]
        self._party.decide(f"return {number} living", others)
