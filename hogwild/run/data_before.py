"""What a data set of the user's own held before its samples were looked at.

It may have opened a file since, and could then be sent to no worker process any more. What it has loaded is as well
kept: it is sent once, to all of them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from hogwild.data.sources import DatasetSource, Source

_OBJECTS = 1000  # of which a data set is made, at most
_ITEMS = 1000  # of a list or dict, at most; longer ones hold samples
_LEFT_ALONE = (Tensor, np.ndarray, nn.Module)


class DataBefore:
    """The attributes of a data set and of what it is made of, as they were; lists and dicts in them with their items.

    No object is copied, for the end of a copy may close or remove what it shares with the data set. What is of a class
    of Python's own, as a logger, is left alone.
    """

    def __init__(self, source: Source | None) -> None:
        self._source = source
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        found, seen = [source.dataset] if isinstance(source, DatasetSource) else [], set[int]()
        while found and len(self._attributes) < _OBJECTS:
            one = found.pop(0)
            own = _attributes_of(one)
            if id(one) in seen or own is None:
                continue
            seen.add(id(one))
            self._attributes.append((own, dict(own)))
            for value in own.values():
                found += self._within(value)

    def _within(self, value: Any) -> list[Any]:
        """What may hold attributes in one attribute."""
        if not isinstance(value, list | tuple | dict):
            return [value]
        if len(value) > _ITEMS:
            return []
        if type(value) is dict:
            self._attributes.append((value, dict(value)))
        elif type(value) is list:
            self._lists.append((value, list(value)))
        return list(value.values() if isinstance(value, dict) else value)

    def put_back(self) -> None:
        """Give all of them what they held; what nobody holds any more is closed by its end."""
        with _no_word_of_what_is_not_closed():
            for own, before in self._attributes:
                own.update(before)
                for name in own.keys() - before.keys():
                    del own[name]
            for items, were in self._lists:
                items[:] = were

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Put back; where the block raises, they are given again what they held until now."""
        until_now = DataBefore(self._source)
        self.put_back()
        try:
            yield
        except BaseException:
            until_now.put_back()
            raise
        with _no_word_of_what_is_not_closed():
            until_now._attributes, until_now._lists = [], []


@contextmanager
def _no_word_of_what_is_not_closed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def _attributes_of(one: Any) -> dict[str, Any] | None:
    """Its own, whatever its class makes of attributes that are missing; None where it has none, or is left alone."""
    if isinstance(one, _LEFT_ALONE) or type(one).__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    try:
        own = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None
