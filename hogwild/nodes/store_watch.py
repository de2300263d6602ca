"""The store, asked now and then by a thread of its own.

Where this machine is cut off, or the one that hosts the store is gone without a word, the store answers nobody, for as
long as TCP hopes. So nobody but that thread waits for it, and the parent of a run looks at what it has found.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hogwild.errors import NodeError, one_line, printable
from hogwild.nodes.party import Party
from hogwild.nodes.returning import Door

_log = logging.getLogger("hogwild")
_ASK_EVERY = 0.2  # seconds
_DECIDED_EVERY = 0.02  # where somebody waits for what is decided
_LOOK_EVERY = 0.005
_HEARING = 1.0  # seconds for the store to say whether a machine that is gone has ended the run
_TOLD_WITHIN = 2.0  # seconds
_CALLED_OFF, _LOST = "called off", "lost"


class StoreWatch:
    """What is found out at the store while a run is made.

    Args:
        party: of this machine.
        door: lets machines come back.
        connect: called with each that is to be connected with now; what it raises as `OSError` ends the watch.

    Attributes:
        called_off: the machine that has ended the run for all, and why; no words: it was interrupted. Empty: none has.
        connected: the machines are; until they are, it is looked whether one has left.
        left: a machine that has, and why; empty: none has.
        unreached: why the store cannot be reached any more, and `unreached_since` which CLOCK_MONOTONIC second.
    """

    def __init__(self, party: Party, door: Door, connect: Callable[[tuple[int, int]], None]) -> None:
        self.called_off: list[Any] = []
        self.connected = bool(party.returns)
        self.left: tuple[int, Any] | tuple[()] = ()
        self.unreached = ""
        self.unreached_since = 0.0
        self._party = party
        self._door = door
        self._connect = connect
        self._drawn = 0  # how many have drawn a number to end the run
        self._unheard: set[int] = set()  # those of them that have not said who they are; one may have died before
        self._asked = 0  # how often the store was asked for that
        self._question = ""
        self._answers: dict[str, Any] = {}
        self._closed = threading.Event()
        self._ask_now = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._closed.is_set():
                self._look_who_ends()
                self._asked += 1
                if not self.connected:
                    self._look_who_left()
                if self.called_off:
                    return
                for machine in self._door.look():
                    self._connect(machine)
                self._look_what_is_decided()
                self._ask_now.wait(_DECIDED_EVERY if self._question else _ASK_EVERY)
                self._ask_now.clear()
        except OSError:
            return
        except NodeError as error:
            self.unreached_since = time.monotonic()
            self.unreached = one_line(error)

    def _look_who_ends(self) -> None:
        """Whoever was lost before it said so ends nothing: the others go on without it."""
        drawn = self._party.drawn(_CALLED_OFF)
        self._unheard |= set(range(self._drawn + 1, drawn + 1))
        self._drawn = drawn
        for number in sorted(self._unheard):
            if (said := self._party.decided(f"{_CALLED_OFF} {number}")) is None:
                continue
            self._unheard.discard(number)
            match said:
                case [int(node), str()] if node not in self._party.lost:
                    self.called_off = self.called_off or said

    def _look_who_left(self) -> None:
        for node in set(range(self._party.nodes)) - {self._party.node}:
            if (why := self._party.why_left(node)) is not None:
                self.left = node, why

    def _look_what_is_decided(self) -> None:
        question = self._question
        if question and (answer := self._party.decided(question)) is not None:
            self._answers[question] = answer
            self._question = ""

    def decided(self, what: str) -> Any:
        """What was decided, as far as it is known here; None: nothing yet. From the first call on it is asked for."""
        if what not in self._answers and self._question != what:
            self._question = what
            self._ask_now.set()
        return self._answers.pop(what, None)

    def call_off(self, why: str = "") -> None:
        """End the run for all, for that reason; without one they are interrupted, for this machine was."""
        said = [self._party.node, why]
        self.called_off = self.called_off or said
        told_in_time(lambda: self._party.decide(f"{_CALLED_OFF} {self._party.draw(_CALLED_OFF)}", said))

    def hear_why(self) -> None:
        """Wait a moment for what the store says from now on; it may be lost too, or out of reach."""
        deadline = time.monotonic() + _HEARING
        for _ in range(2):  # one question may have been under way
            asked = self._asked
            self._ask_now.set()
            while self._asked == asked and self._thread.is_alive() and time.monotonic() < deadline:
                time.sleep(_LOOK_EVERY)

    def why_left(self, node: int) -> str:
        """Why a machine that is gone has left, as far as it has said so in time; empty: it has not."""
        why = _heard_in_time(lambda: self._party.why_left(node))
        return printable(str(why), 400) if why is not None else ""

    def tell_lost(self) -> None:
        """Say which machines are lost to this one."""
        lost = sorted(self._party.lost)
        told_in_time(lambda: self._party.tell(_LOST, lost))

    def is_lost_to_the_leader(self) -> bool:
        """Whether machine 0, as far as it is heard in time, counts this machine as lost."""
        lost = _heard_in_time(lambda: self._party.hear(_LOST, 0))
        return isinstance(lost, list) and self._party.node in lost

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._ask_now.set()
        self._thread.join(_ASK_EVERY)  # not longer: it may be cut off


def told_in_time(tell: Callable[[], object], seconds: float = _TOLD_WITHIN) -> None:
    """Tell the store something, and wait for it so many seconds at most. Whether it was heard is not said."""

    def told() -> None:
        with suppress(NodeError):
            tell()

    thread = threading.Thread(target=told, daemon=True)
    thread.start()
    thread.join(seconds)


def _heard_in_time(hear: Callable[[], Any]) -> Any:
    """What the store says within a moment; None where it does not."""
    heard: list[Any] = []
    told_in_time(lambda: heard.append(hear()), _HEARING)
    return heard[0] if heard else None
