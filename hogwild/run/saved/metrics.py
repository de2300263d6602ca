"""metrics.jsonl: what was measured on the way, one JSON object a line, by update.

An evaluation has `update` and `seconds` first, then its metrics. What a worker logged has `update`, `batch` and
`worker` first. JSON has no NaN and no infinity: they are null, and the words inf and -inf. Rows are appended while the
run goes on, so that a kill loses the last moment at most; those of a batch that is computed again are taken out.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirectoryError, printable
from hogwild.run.saved.directory import METRICS, append_lines, placed, writing
from hogwild.workers.failures import WorkerHistory
from hogwild.workers.team import Logged
from hogwild.workers.worker_info import OF_A_ROW

Row = Mapping[str, float]
OF_AN_EVALUATION = ("update", "seconds")  # how its row begins, whose names no metric may have
_INFINITE = ("inf", "-inf")  # what `_written` makes of these numbers
_EVERY = 1.0  # seconds between two appends of what workers logged


def metrics_in(row: Row) -> dict[str, float]:
    """The metrics of an evaluation, by name."""
    return {name: value for name, value in row.items() if name not in OF_AN_EVALUATION}


def as_json(rows: Iterable[Row]) -> str:
    """Those rows as lines. JSON has no NaN and no infinity; they become null, and the words inf and -inf."""
    return "".join(f"{json.dumps({k: _written(v) for k, v in row.items()})}\n" for row in rows)


def _written(value: float) -> float | str | None:
    return finite_or_word(value) if value == value else None


def finite_or_none(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; they become null."""
    return value if value is None or value - value == 0 else None


def finite_or_word(value: float) -> float | str:
    """JSON has no NaN and no infinity; they become the words nan, inf and -inf."""
    return value if value - value == 0 else str(value)


def json_values(value: Any, of_number: Callable[[float], Any] = finite_or_none) -> Any:
    """A value of mappings, lists, paths and plain values as JSON has it, and `of_number` of all numbers in it."""
    if isinstance(value, Mapping):
        return {str(key): json_values(inner, of_number) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(inner, of_number) for inner in value]
    if isinstance(value, float):
        return of_number(value)
    return str(value) if isinstance(value, Path) else value


def by_update(evaluations: Iterable[Row], logged: Iterable[Row]) -> list[Row]:
    """All rows in the order of their updates: the evaluation of version u, then what was logged at update u."""
    rows = [*((row["update"], 0.0, 0.0, row) for row in evaluations), *((*_place(row), row) for row in logged)]
    return [row for *_, row in sorted(rows, key=lambda placed: placed[:3])]


def logged_row(logged: Logged) -> Row:
    """What a worker logged, as a row."""
    return {"update": logged.update, "batch": logged.batch, "worker": logged.worker, **logged.metrics}


def all_logged(before: Iterable[Row], history: WorkerHistory, end: float = math.inf) -> tuple[Row, ...]:
    """What was logged `before` a resume, and since then by workers, of batches that count and updates before `end`."""
    since = (logged_row(one) for one in history.logged_once() if one.update < end)
    return logged_in_order([*before, *since])


def logged_in_order(logged: Iterable[Row]) -> tuple[Row, ...]:
    """What workers logged, by update and batch; for one batch in the order in which it came."""
    return tuple(sorted(logged, key=_place))


def _place(row: Row) -> tuple[float, float, float]:
    return row["update"], 1.0, row["batch"]


def read_metrics(path: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """(evaluations, logged) of a metrics.jsonl; none where it is missing. A last line that was cut off is left out.

    Raises:
        RunDirectoryError: it is no such file.
    """
    evaluations: list[dict[str, float]] = []
    logged: list[dict[str, float]] = []
    try:
        if not path.is_file():
            return evaluations, logged
        lines = path.read_text(encoding="utf-8").split("\n")
        for line in lines[:-1]:
            row = {str(k): _number(v) for k, v in json.loads(line).items()}
            row["update"] = int(row["update"])
            (logged if tuple(row)[:3] == OF_A_ROW else evaluations).append(row)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise RunDirectoryError(f"{path} does not hold the metrics of a run: {printable(str(error))}") from error
    return evaluations, logged


def _number(value: Any) -> float:
    if value is None or value in _INFINITE:
        return float("nan" if value is None else value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value


def replace_metrics(out: Path, rows: Sequence[Row]) -> None:
    """Write those rows in the place of what a run's metrics.jsonl holds; no new file where there is no row.

    Raises:
        RunDirectoryError: the file cannot be written; the one before is still there.
    """
    if rows or (out / METRICS).exists():
        with writing(out / METRICS), placed(out, METRICS) as path:
            path.write_text(as_json(rows), encoding="utf-8")


class MetricsFile:
    """Appends rows to the metrics.jsonl of a run as they come; None is no directory.

    Args:
        out: the directory of the run.
        evaluations: rows; what is appended to this list from now on is written.
        history: what workers logged, likewise. Where some of it is undone, the whole file is written anew.
        before: what was logged before a resume.
    """

    def __init__(
        self, out: Path | None, evaluations: Sequence[Row], history: WorkerHistory, before: Sequence[Row]
    ) -> None:
        self._out = out
        self._evaluations = evaluations
        self._history = history
        self._before = before
        self._written = len(evaluations), len(history.logged)
        self._undone = len(history.undone)
        self._last = time.monotonic()

    def look(self) -> None:
        """Append what is new: an evaluation at once, what workers logged once a second; all anew once some was undone.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        if self._out is None:
            return
        written, history = self._written, self._history
        evaluations, logged = self._evaluations[written[0] :], history.logged[written[1] :]
        anew, late = len(history.undone) != self._undone, time.monotonic() - self._last >= _EVERY
        if not (anew or evaluations or (logged and late)):
            return
        self._written = written[0] + len(evaluations), written[1] + len(logged)
        self._undone, self._last = len(history.undone), time.monotonic()
        if anew:
            replace_metrics(self._out, by_update(self._evaluations, all_logged(self._before, history)))
        else:
            append_lines(self._out / METRICS, as_json(by_update(evaluations, map(logged_row, logged))))
