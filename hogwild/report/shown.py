"""One saved run on one screen: what it came to, or what became of it, its settings, and where it was made."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hogwild.errors import printable
from hogwild.report.ranking import in_words
from hogwild.report.run_list import found_object
from hogwild.report.tables import named_lines, run_report
from hogwild.report.words import figure
from hogwild.run.result import Run
from hogwild.run.saved.found import DEFAULTS, RUNNING, FoundRun
from hogwild.run.saved.origin import read_origin

_MACHINE = {"cpu": "", "system": "", "python": "Python ", "torch": "torch "}
_PROGRAM = "hogwild"
_OTHERS = "all others as by default; config.toml has them"


def saved_run_report(found: FoundRun, run: Run | None) -> RenderableType:
    """What a run's folder holds; `run` is None where no record of it is there."""
    rows = [*_settings(found), *_where(environment_of(found))]
    if run is not None and found.go_on:
        rows.insert(0, ("go on", found.go_on))
    head = run_report(run) if run is not None else _without_record(found)
    return Group(head, Padding(named_lines(rows), (1, 0, 0, 2)))


def saved_run_object(found: FoundRun, run: Run | None) -> dict[str, Any]:
    """The same, as JSON has it."""
    result = run.summary() if run is not None else None
    return {**found_object(found), "environment": environment_of(found), "result": result}


def environment_of(found: FoundRun) -> Mapping[str, Any]:
    """Where a run was begun; empty where that was not recorded."""
    origin = read_origin(found.path)
    return origin.environment if origin is not None else {}


def _without_record(found: FoundRun) -> RenderableType:
    """A run that trains, failed, or was killed."""
    rows = [("why", found.why)] if found.why and found.status != RUNNING else []
    rows += [(name, figure(value)) for name, value in found.metrics.items() if value is not None]
    if found.go_on:
        rows.append(("go on", found.go_on))
    who = f"; {found.why}" if found.status == RUNNING else ""
    return Group(Text(f"{found.path} · {found.status}{who}", "bold"), Padding(named_lines(rows), (1, 0, 0, 2)))


def _settings(found: FoundRun) -> Iterator[tuple[str, str]]:
    own = {name: value for name, value in found.settings.items() if name != "name" and value != DEFAULTS.get(name)}
    words = in_words(own)
    yield "settings", words or "those by default"
    if words:
        yield "", _OTHERS


def _where(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """On what machine, by what code and command; nothing where it was not recorded."""
    parts = [f"{word}{environment[key]}" for key, word in _MACHINE.items() if environment.get(key)]
    if parts:
        yield "made on", printable(", ".join(parts), 200)
    if environment.get("git"):
        yield "code", printable(f"git {environment['git']}", 200)
    if command := [str(word) for word in environment.get("command") or ()]:
        ours = len(command) > 1 and Path(command[1]).name == _PROGRAM
        yield "by", printable(shlex.join([_PROGRAM, *command[2:]] if ours else command), 400)
