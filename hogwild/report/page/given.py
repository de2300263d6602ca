"""What the paths of a report hold: runs, saved checks, saved benches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hogwild.errors import ArgumentError, HogwildError, RunDirectoryError, printable
from hogwild.run.result import Run
from hogwild.run.saved.found import BROKEN, CHECK, FoundFolders, FoundRun, find_runs
from hogwild.run.saved.record import saved_run

_CHECK = "check.json"
_MAX_BYTES = 1 << 28
_CHECK_KEYS = {"title", "identical", "passed", "digests", "runs", "divergence", "controls", "courses", "verdict"}
_BENCH_KEYS = {"machine", "settings", "warnings"}
_RESULTS = {"cases", "results"}  # of a bench, and of a bench of scaling


@dataclass(frozen=True)
class Given:
    """What a report is made of.

    Attributes:
        folders: those that hold runs, as they were named.
        found: the runs in them, and what is no run.
        runs: those of the runs that could be read whole, verified; their states are not kept.
        checks, benches: (where it is saved, what it holds).
    """

    folders: tuple[Path, ...]
    found: FoundFolders
    runs: tuple[Run, ...]
    checks: tuple[tuple[Path, Mapping[str, Any]], ...]
    benches: tuple[tuple[Path, Mapping[str, Any]], ...]


def read_given(paths: Sequence[Path]) -> Given:
    """Read what the paths hold. A run that cannot be read is one that is broken, and the others are read all the same.

    Raises:
        ArgumentError: a path is not there, a file is neither a check nor a bench, or there is nothing to report in all
            of them.
    """
    checks, benches, folders = [], [], []
    for path in paths:
        if path.is_dir():
            folders.append(path)
            continue
        found = _read(path)
        if found.keys() >= _CHECK_KEYS:
            checks.append((path, found))
        elif found.keys() >= _BENCH_KEYS and found.keys() & _RESULTS:
            benches.append((path, found))
        elif "profiles" in found:
            raise ArgumentError(
                f"{str(path)!r} is a profile, which has no report; hogwild bench --profile --plot draws it"
            )
        else:
            raise ArgumentError(
                f"{str(path)!r} is neither a check nor a bench; hogwild check saves a check.json, and hogwild bench "
                f"--save FILE a bench"
            )
    listed = find_runs(folders)
    saved = [other.path / _CHECK for other in listed.others if other.what == CHECK]
    checks.extend((path, _read_check(path)) for path in saved)
    runs, broken = _read_runs(listed.runs)
    if not (runs or checks or benches):
        why = f"; {next(iter(broken.values()))}" if broken else ""
        where = ", ".join(repr(str(path)) for path in paths)
        raise ArgumentError(f"nothing to report in {where}: no run that was saved whole, no check, no bench{why}")
    all_runs = tuple(_broken(run, broken) for run in listed.runs)
    return Given(tuple(folders), FoundFolders(all_runs, listed.others), tuple(runs), tuple(checks), tuple(benches))


def _read_runs(found: Sequence[FoundRun]) -> tuple[list[Run], dict[Path, str]]:
    runs, broken = [], {}
    for one in found:
        if one.digest is None:  # unfinished, or broken
            broken[one.path] = one.why if one.status == BROKEN else f"{one.path} is {one.status}"
            continue
        try:
            runs.append(_without_state(saved_run(one.path)))
        except HogwildError as error:
            broken[one.path] = printable(str(error), 400)
    return runs, broken


def _without_state(run: Run) -> Run:
    return replace(run, state={})


def _broken(run: FoundRun, broken: Mapping[Path, str]) -> FoundRun:
    if run.path not in broken or run.digest is None:
        return run
    return FoundRun(run.path, BROKEN, broken[run.path], run.settings)


def _read_check(path: Path) -> Mapping[str, Any]:
    found = _read(path)
    if not found.keys() >= _CHECK_KEYS:
        raise RunDirectoryError(
            f"{path} does not hold a check: {', '.join(sorted(_CHECK_KEYS - found.keys()))} missing"
        )
    return found


def _read(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file.

    Raises:
        ArgumentError: there is none.
    """
    try:
        if path.stat().st_size > _MAX_BYTES or not path.is_file():
            raise ArgumentError(f"{str(path)!r} is no plain file, or too long")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArgumentError(f"{str(path)!r} does not exist; name a run, a folder of runs, a check or a bench") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{str(path)!r} cannot be read as JSON: {printable(str(error))}") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"{str(path)!r} does not hold a JSON object, as a check or a bench does")
    return found
