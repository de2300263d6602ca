"""The attributes of a user's data set as they were before the trial step read samples from it.

Reading a sample may open a file. An open file cannot be sent to a worker process, and its number names another file
there; so before a data set is sent, its attributes can be put back to what they were. What it has loaded into memory
meanwhile may just as well stay: it is sent once, to all workers.
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
    """Remembers the attributes of a data set and of the objects in it.

    The objects themselves are not copied: deleting a copy may close or remove what it shares with the data set.
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
        """Give every object the attributes that it had. A file that was opened since is closed once nobody holds it."""
        with _no_word_of_what_is_not_closed():
            for _, holders in self._held.values():
                for holder in holders:
                    with suppress(Exception):  # of a class that nobody thought of; it keeps what it has
                        holder.put_back()

    def holds_new_file_number(self) -> bool:
        """True where an attribute has become the number of a file that was opened since. In another process that number
        is another file's. Objects of a class that says itself how it is pickled are not looked at."""
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
    def put_back_on_trial(self) -> Iterator[None]:
        """Put the attributes back. Where the block raises, the objects get what they held until now."""
        until_now = DataBefore(self._source)
        self.put_back()
        try:
            yield
        except BaseException:
            until_now.put_back()
            raise
        until_now.forget()

    def forget(self) -> None:
        """Let go of everything that is remembered."""
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
    """Open files that have a name: number → (device, inode). Empty where the system does not tell."""
    files = {}
    with suppress(OSError):
        for number in (int(link.name) for link in Path("/dev/fd").iterdir()):
            with suppress(OSError):  # the listing's own
                told = os.fstat(number)
                if stat.S_ISREG(told.st_mode) and told.st_nlink:
                    files[number] = told.st_dev, told.st_ino
    return files
