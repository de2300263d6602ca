"""The random generators that all threads of a process share: torch's default one, numpy's and Python's.

Where the bits are promised no update may draw from them: what it drew would depend on who came first. An evaluation
may, and the trial step of another training in this program, for they put them back; what was computed meanwhile is
computed again.
"""

from __future__ import annotations

from functools import partial

from hogwild.data.generators import GeneratorWatch, Look
from hogwild.data.seeding import read_at_rest, times_moved
from hogwild.errors import NotReproducible
from hogwild.shared.tickets import Control


class SharedGenerators:
    """Watches them from one worker thread. Made while somebody draws who will put them back, it waits for that.

    `loans` are those of the thread that trains, which last as long as the training.
    """

    def __init__(self, control: Control, worker: int, rule: str, loans: int) -> None:
        self._control = control
        self._loans = loans
        self._worker = worker
        self._rule = rule
        self._moves, self._again = times_moved(), False
        control.wait_until(self._note, worker)

    def moved(self, update: int) -> bool:
        """True when an evaluation, say, drew while that update was computed; they are back, compute it again.

        Raises:
            NotReproducible: that update drew, or one that ran beside it.
            Aborted: the run has failed.
        """
        put_back = self._were_put_back()
        if self._watch.look() == self._untouched and not put_back:
            return False
        self._control.wait_until(partial(self._is_back, update), self._worker)
        return True

    def _were_put_back(self) -> bool:
        """True where somebody put them back, and found them moved, since they were seen at rest: by that update, too,
        for all that is known. Not twice in a row: beside who draws again and again no update would end."""
        before, self._moves = self._moves, times_moved()
        self._again = self._moves != before and not self._again
        return self._again

    def _note(self) -> bool:
        noted = read_at_rest(lambda: (*_first_look(), times_moved()), self._loans)
        if noted is not None:
            self._watch, self._untouched, self._moves = noted
        return noted is not None

    def _is_back(self, update: int) -> bool:
        seen = read_at_rest(lambda: (self._watch.look(), times_moved()), self._loans)
        if seen is None:
            return False
        look, self._moves = seen
        if look != self._untouched:
            names = " and ".join(self._watch.moved(self._untouched, look))
            raise NotReproducible(
                f"{names}, which all threads share, was drawn from by update {update} or one that ran beside it, so "
                f"{self._rule} cannot give the same bits; use kind='processes', or hogwild.worker_info().generator"
            )
        return True


def _first_look() -> tuple[GeneratorWatch, Look]:
    watch = GeneratorWatch()  # it looks as is best for how they stand now
    return watch, watch.look()
