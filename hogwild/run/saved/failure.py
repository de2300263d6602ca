"""What a run failed by, noted in its folder, so that whoever lists it can say why it did not end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hogwild.errors import one_line, printable
from hogwild.run.saved.directory import FAILURE, placed

_MAX_BYTES = 1 << 16
_LONGEST = 300  # letters of a failure


@contextmanager
def noted_failure(out: Path | None) -> Iterator[None]:
    """Inside, what is raised is noted in the run's folder, if it has one, so that others can say how it ended."""
    try:
        yield
    except Exception as error:
        if out is not None:
            with suppress(OSError), placed(out, FAILURE) as path:  # what is raised matters more
                path.write_text(json.dumps({"kind": type(error).__name__, "why": _why(error)}) + "\n", "utf-8")
        raise


def _why(error: Exception) -> str:
    """What was raised, on one line, and who says so."""
    known = type(error).__module__.startswith("hogwild.")
    told = str(error).strip().partition("\n")[0] if known else one_line(error)
    notes = "; ".join(getattr(error, "__notes__", ()))
    return printable(f"{told} ({notes})" if notes else told, _LONGEST)


def failure_in(folder: Path) -> str | None:
    """What the run in a folder failed by, on one line; None where it has not."""
    path = folder / FAILURE
    if not path.exists():
        return None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
            return printable(f"{found['kind']}: {found['why']}", 2 * _LONGEST)
    return f"{FAILURE} in it cannot be read"
