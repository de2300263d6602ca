"""The number of threads of NumPy's BLAS: one while a training computes, and given back when the last of them ends.

The bits of a product may hang on it. It is one number for all threads of a process, and a library's own: SciPy brings a
second OpenBLAS. Libraries that are loaded later are looked for when the next training, or step, begins. Those that have
no such number are left alone, as Accelerate on macOS.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

TORCHS_TOO = frozenset({"mkl"})
"""What torch may compute with as well; it sets their number itself."""


class BlasThreads:
    """The numbers as they were before the first of several trainings that compute at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._borrowers = 0
        self._before: dict[str, tuple[Any, int]] = {}  # file → the library, and its number
        self._found: list[Any] = []
        self._modules = 0  # that were imported when libraries were looked for

    def lend(self, but: Collection[str] = ()) -> None:
        """A training is going to compute here, in one thread of each library but those; it sets none for itself."""
        with self._lock:
            for library in self._libraries():
                number = library.num_threads
                if number != 1 and library.internal_api not in but:
                    self._before.setdefault(library.filepath, (library, number))
                    library.set_num_threads(1)
            self._borrowers += 1

    def give_back(self) -> None:
        """It has ended; after the last of them there are as many threads as before the first."""
        with self._lock:
            self._borrowers -= 1
            while self._before and not self._borrowers:
                _, (library, number) = self._before.popitem()
                library.set_num_threads(number)

    @contextmanager
    def one(self, but: Collection[str] = ()) -> Iterator[None]:
        """Inside, those libraries compute with one thread."""
        self.lend(but)
        try:
            yield
        finally:
            self.give_back()

    def _libraries(self) -> list[Any]:
        """Those that are loaded; they are looked for, in half a millisecond, once something was imported since."""
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._found = ThreadpoolController().select(user_api="blas").lib_controllers
        return self._found


blas_threads = BlasThreads()
