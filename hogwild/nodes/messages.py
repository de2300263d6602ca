"""What machines send each other: two forms of message, each of a size that both sides know before.

    gradient   ticket │ head │ … to 64 bytes │ the bytes of the ticket's gradient slot
    word       kind │ head │ number │ … to 64 bytes

Each carries the head of its sender: how many versions it has made. Nothing that is received is unpickled.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

HEADER_BYTES = 64
_FIRST, _HEAD, _NUMBER = range(3)


class Kind(IntEnum):
    """What a word says."""

    LIVES = 1  # nothing but that its sender lives, and its head
    DONE = 2  # its sender has all versions, and knows that all others have


def new_message(slot_bytes: int = 0) -> Tensor:
    """Memory for a message, uint8; for a gradient with so many bytes of a slot."""
    return torch.zeros(HEADER_BYTES + slot_bytes, dtype=torch.uint8)


def _header(message: Tensor) -> Tensor:
    return message[:HEADER_BYTES].view(torch.int64)


def write_header(message: Tensor, first: int, head: int) -> None:
    """Say what a message is: the ticket of a gradient or the kind of a word; and the sender's head."""
    header = _header(message)
    header[_FIRST], header[_HEAD] = first, head


def first_of(message: Tensor) -> int:
    """The ticket of a gradient, or the kind of a word."""
    return int(_header(message)[_FIRST])


def head_of(message: Tensor) -> int:
    """The head of the sender when it sent that."""
    return int(_header(message)[_HEAD])


def slot_in(message: Tensor) -> Tensor:
    """The bytes of the slot that came in a gradient."""
    return message[HEADER_BYTES:]
