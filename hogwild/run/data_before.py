"""What a data set of the user's own held before its samples were looked at.

It may have opened a file since, and could then be sent to no worker process any more; or it holds the number of one,
which is another file's there. What it has loaded is as well kept: it is sent once, to all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hogwild.data.sources import DatasetSource, Source
from hogwild.run.holders import Holder, holders_of

_OBJECTS = 1000  # of which a data set is made, at most
_ADDRESS = 1 << 32  # from which on a number may be one
_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


class DataBefore:
    """What a data set, and what it is made of, held.

    No object is copied, for the end of a copy may close or remove what it shares with the data set.
    """

    def __init__(self, source: Source | None) -> None:
        self._source, self._files = source, _open_files()
        self._held: dict[int, tuple[Any, list[Holder]]] = {}
        found = [source.dataset, source.collate] if isinstance(source, DatasetSource) else []
        while found and len(self._held) < _OBJECTS:
            one = found.pop(0)
            if id(one) not in self._held and (holders := holders_of(one)):
                self._held[id(one)] = one, holders
                found += [part for holder in holders for part in holder.held().values()]

    def put_back(self) -> None:
        """Give all of them what they held; what nobody holds any more is closed by its end."""
        with _no_word_of_what_is_not_closed():
            for _, holders in self._held.values():
                for holder in holders:
                    holder.put_back()

    def is_of_this_process(self) -> bool:
        """True where it has come to hold the number of a file or a process, or an address, which mean nothing in
        another one. What a class says itself that is sent is left to it."""
        now, before = DataBefore(self._source), dict(self._numbers())
        opened = {number for number, file in now._files.items() if self._files.get(number) != file}
        new = [number for at, number in now._numbers() if before.get(at) != number]
        return any(number in opened or number == os.getpid() or number >= _ADDRESS for number in new)

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
        with _no_word_of_what_is_not_closed():
            until_now._held.clear()


@contextmanager
def _no_word_of_what_is_not_closed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def _says_what_is_sent(own: type) -> bool:
    """True where a class has a way of its own to be pickled."""
    return any(getattr(own, name, None) is not getattr(object, name, None) for name in _PICKLING)


def _open_files() -> dict[int, tuple[int, int]]:
    """By number, what each is; empty where the system does not tell."""
    files = {}
    with suppress(OSError):
        for number in (int(link.name) for link in Path("/dev/fd").iterdir()):
            with suppress(OSError):  # the listing's own
                told = os.fstat(number)
                files[number] = told.st_dev, told.st_ino
    return files
