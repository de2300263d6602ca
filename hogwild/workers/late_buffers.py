"""Buffers that a forward pass makes after the first one: each worker would have one of its own, from then on.

What the first forward pass of a run makes is told before it (`hogwild.run.trial.try_job`). A cache that is not
persistent is no state, and nothing is told of it. A worker whose own first gradient makes a buffer does not know that
it is late; another one tells. Of layers that are added later nothing is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from torch import Tensor, nn

from hogwild.errors import some_of
from hogwild.shared.words import Word, Words

_log = logging.getLogger("hogwild")


class LateBuffers:
    """Looks whether a replica has buffers that it had not after its first gradient, and tells of them once in a run.

    Args:
        replica: the worker's.
        control: of the run.
    """

    def __init__(self, replica: nn.Module, control: Words) -> None:
        self._replica, self._control = replica, control
        self._held = [layer._buffers for layer in replica.modules()]
        self._open: list[dict[str, Tensor | None]] = []  # those that hold a None, which may be filled
        self._there: int | None = None
        self._known: set[str] = set()

    def tell(self) -> None:
        """Look, after a gradient."""
        if self._number() == self._there:
            return
        made = {*self._saved()} - self._known
        if self._there is not None and made and self._control.first_to_set(Word.MADE):
            _log.warning(
                "%s: a buffer that a forward pass made after the first one, so each worker has one of its own, and no "
                "saved model; register it before the run, or a cache with persistent=False",
                some_of(sorted(made)),
            )
        self._open = [of for of in self._held if any(value is None for value in of.values())]
        self._there, self._known = self._number(), self._known | made

    def _number(self) -> int:
        """One that grows with each buffer that is added, or filled: asked after every gradient."""
        return sum(map(len, self._held)) + sum([value is not None for of in self._open for value in of.values()])

    def _saved(self) -> Iterator[str]:
        """The names of those that a state dict has."""
        for path, layer in self._replica.named_modules():
            for name, value in layer._buffers.items():
                if value is not None and name not in layer._non_persistent_buffers_set:
                    yield f"{path}.{name}" if path else name
