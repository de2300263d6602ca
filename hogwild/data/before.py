"""What a data set of the user's own held before its samples were looked at.

It may have opened a file since, and could then be sent to no worker process any more; or it holds the number of one,
which is another file's there. What it has loaded is as well kept: it is sent once, to all of them.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hogwild.data.holders import ATOMS, Budget, Holder, holders_of
from hogwild.data.sources import DatasetSource, Source

_OBJECTS = 1000  # of which a data set is made, at most


class DataBefore:
    """What a data set, and what it is made of, held.

    No object is copied, for the end of a copy may close or remove what it shares with the data set.
    """

    def __init__(self, source: Source | None) -> None:
        self._source, self._opened = source, set[int]()
        self._held: dict[int, tuple[Any, list[Holder]]] = {}
        found, budget = deque([source.dataset, source.collate] if isinstance(source, DatasetSource) else []), Budget()
        self._files = _open_files() if found else {}
        while found and len(self._held) < _OBJECTS:
            one = found.popleft()
            if id(one) not in self._held and (holders := holders_of(one, budget)):
                self._held[id(one)] = one, holders
                held = (part for holder in holders for part in holder.held().values())
                found.extend(part for part in held if not isinstance(part, ATOMS))

    def note_files(self) -> None:
        """Note which files have been opened since; called once samples have been looked at, and before anything else is
        opened."""
        if self._held:
            self._opened = {number for number, file in _open_files().items() if self._files.get(number) != file}

    def put_back(self) -> None:
        """Give all of them what they held; what nobody holds any more is closed by its end."""
        with _no_word_of_what_is_not_closed():
            for _, holders in self._held.values():
                for holder in holders:
                    with suppress(Exception):  # of a class that nobody thought of; it keeps what it has
                        holder.put_back()

    def is_known_by_number(self) -> bool:
        """True where it has come to hold the number of a file that has been opened since, which is another one's in
        another process. What a class says itself that is sent is left to it."""
        if not self._opened:
            return False
        before = dict(self._numbers())
        now = DataBefore(self._source)._numbers()
        return any(number in self._opened and before.get(at) != number for at, number in now)

    def _numbers(self) -> Iterator[tuple[tuple[int, int, Any], int]]:
        """Whole numbers, by where they were held."""
        for key, (one, holders) in self._held.items():
            if not _says_what_is_sent(type(one)):
                for place, holder in enumerate(holders):
                    held = holder.held().items()
                    yield from (((key, place, name), value) for name, value in held if type(value) is int)

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
        until_now.forget()

    def forget(self) -> None:
        """Hold nothing of it any longer."""
        with _no_word_of_what_is_not_closed():
            self._held.clear()


@contextmanager
def _no_word_of_what_is_not_closed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


def _says_what_is_sent(own: type) -> bool:
    """True where a class has a way of its own to be pickled."""
    return any(getattr(own, name, None) is not getattr(object, name, None) for name in _PICKLING)


def _open_files() -> dict[int, tuple[int, int]]:
    """By number, which each is, of those that have a name; empty where the system does not tell."""
    files = {}
    with suppress(OSError):
        for number in (int(link.name) for link in Path("/dev/fd").iterdir()):
            with suppress(OSError):  # the listing's own
                told = os.fstat(number)
                if stat.S_ISREG(told.st_mode) and told.st_nlink:
                    files[number] = told.st_dev, told.st_ino
    return files
