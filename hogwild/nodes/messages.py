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
from torch import Tensor

HEADER_BYTES = 64
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


def new_message(slot_bytes: int = 0) -> Tensor:
    """Memory for a message, uint8; for a gradient with so many bytes of a slot."""
    return torch.zeros(HEADER_BYTES + slot_bytes, dtype=torch.uint8)


def _header(message: Tensor) -> Tensor:
    return message[:HEADER_BYTES].view(torch.int64)


def write_header(message: Tensor, first: int, head: int) -> None:
    """Say what a message is: the ticket of a gradient and the sender's head; a version and the tickets of the run."""
    header = _header(message)
    header[_FIRST], header[_HEAD] = first, head


def write_word(message: Tensor, saying: Saying) -> None:
    """Say that."""
    _header(message)[: len(saying)] = torch.tensor(saying)


def word_in(message: Tensor) -> Saying:
    """What a word says."""
    return Saying(*_header(message)[: len(Saying._fields)].tolist())


def first_of(message: Tensor) -> int:
    """The ticket of a gradient, or the number of a version."""
    return int(_header(message)[_FIRST])


def head_of(message: Tensor) -> int:
    """The head of the sender when it sent that; of a version, the tickets of the run."""
    return int(_header(message)[_HEAD])


def slot_in(message: Tensor) -> Tensor:
    """The bytes of the slot that came in a gradient."""
    return message[HEADER_BYTES:]
