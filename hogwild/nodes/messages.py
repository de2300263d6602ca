"""What machines send each other: forms of message, each of a size that both sides know before.

    gradient   ticket │ head │ … to 64 bytes │ the bytes of the ticket's gradient slot
    word       kind │ head │ since │ wanted │ … to 64 bytes
    version    its number │ tickets of the run │ … to 64 bytes, and then its bytes; see `hogwild.nodes.brought`

The first two carry the head of their sender: how many versions it has made. Nothing that is received is unpickled.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

_HEADER_BYTES = 64
_FIRST, _HEAD = range(2)
NOTHING = -1


class Kind(IntEnum):
    """What a word says."""

    LIVES = 1  # nothing but that its sender lives, and its head
    DONE = 2  # its sender has all versions, and knows that all others have
    COMES = 3  # its sender comes back, and is not yet as far as the others


class Saying(NamedTuple):
    """What a word says. `since`: the ticket from which on the other is sent all that is computed here; `wanted`: the
    version of which, or of a later one, its sender asks for the bytes; NOTHING where it is neither."""

    kind: int
    head: int
    since: int = NOTHING
    wanted: int = NOTHING


class Message:
    """Memory for a message, zeros at first; for a gradient with so many bytes of a slot.

    Attributes:
        bytes: all of it, uint8, as it travels.
        slot: those of the gradient.
    """

    def __init__(self, slot_bytes: int = 0) -> None:
        self.bytes = torch.zeros(_HEADER_BYTES + slot_bytes, dtype=torch.uint8)
        self.slot = self.bytes[_HEADER_BYTES:]
        self._header = memoryview(self.bytes[:_HEADER_BYTES].numpy().data).cast("q")

    @property
    def first(self) -> int:
        """The ticket of a gradient, or the number of a version."""
        return self._header[_FIRST]

    @property
    def head(self) -> int:
        """The head of the sender when it sent that; of a version, the tickets of the run."""
        return self._header[_HEAD]

    @property
    def word(self) -> Saying:
        """What a word says."""
        return Saying(*self._header[: len(Saying._fields)])

    def say(self, first: int, head: int) -> None:
        """Say what it is: the ticket of a gradient and the sender's head; a version and the tickets of the run."""
        self._header[_FIRST], self._header[_HEAD] = first, head

    def say_word(self, saying: Saying) -> None:
        """Say that."""
        for place, number in enumerate(saying):
            self._header[place] = number
