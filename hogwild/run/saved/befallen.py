"""workers.jsonl: what befell the workers and machines of a run, one JSON object a line, written as it happens.

A line has `failure`, how a worker ended before its time or a machine was lost, or `in_doubt`, an update that may have
been applied in part. A run that is resumed, from whatever it was ended by, goes on with both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirectoryError, printable
from hogwild.run.saved.directory import WORKERS, append_lines
from hogwild.workers.failures import WorkerHistory

_FORMS = {"failure": str, "in_doubt": int}


@dataclass(frozen=True)
class Befallen:
    """What befell the workers and machines of a run, as `Run.failures` and `Run.in_doubt` tell it."""

    failures: tuple[str, ...] = ()
    in_doubt: tuple[int, ...] = ()

    @classmethod
    def of(cls, history: WorkerHistory) -> Befallen:
        """What a supervisor has noted."""
        return cls(tuple(map(str, history.failures)), tuple(history.in_doubt))

    def __add__(self, later: Befallen) -> Befallen:
        return Befallen((*self.failures, *later.failures), (*self.in_doubt, *later.in_doubt))

    def where(self, done: Callable[[int], bool]) -> Befallen:
        """The same, less the updates in doubt that are not done and will be computed again."""
        return Befallen(self.failures, tuple(filter(done, self.in_doubt)))

    def to_json(self) -> str:
        """As lines."""
        rows: list[dict[str, Any]] = [{"failure": failure} for failure in self.failures]
        rows += [{"in_doubt": update} for update in self.in_doubt]
        return "".join(f"{json.dumps(row)}\n" for row in rows)


def read_befallen(folder: Path) -> Befallen:
    """What the folder of a run says; nothing where it has no such file. A last line that was cut off is left out.

    Raises:
        RunDirectoryError: the file is something else.
    """
    path = folder / WORKERS
    found: dict[str, list[Any]] = {name: [] for name in _FORMS}
    try:
        if not path.is_file():
            return Befallen()
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            ((name, value),) = json.loads(line).items()
            if type(value) is not _FORMS[name]:
                raise ValueError(f"{name} is {value!r}")
            found[name].append(value)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise RunDirectoryError(f"{path} does not say what befell workers: {printable(str(error))}") from error
    return Befallen(tuple(found["failure"]), tuple(found["in_doubt"]))


class WorkersFile:
    """Appends to a run's workers.jsonl what a supervisor notes, and what is noted of other machines; None is no folder.

    What is appended to the lists of either from now on is written.
    """

    def __init__(self, folder: Path | None, history: WorkerHistory, machines: Sequence[str]) -> None:
        self._folder = folder
        self._history = history
        self._machines = machines
        self._written = 0, 0, 0

    def look(self) -> None:
        """Append what is new.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        failures, doubts, machines = self._history.failures, self._history.in_doubt, self._machines
        before, self._written = self._written, (len(failures), len(doubts), len(machines))
        if self._folder is None or before == self._written:
            return
        told = (*map(str, failures[before[0] :]), *machines[before[2] :])
        append_lines(self._folder / WORKERS, Befallen(told, tuple(doubts[before[1] :])).to_json())
