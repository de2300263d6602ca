"""What settings are called, and their values, where a person reads them: short where they are of one's own file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.run.saved.found import OWN_CODE, FoundRun, setting_of

_FILE, _HASH = f"{OWN_CODE}file", f"{OWN_CODE}sha256"
_NAMES: Mapping[str, str] = {_FILE: "file", _HASH: "file content"}
_DIGITS = 8  # of a hash


def called(name: str) -> str:
    """A setting as a person calls it."""
    return _NAMES.get(name, name.replace("_", " "))


def short_value(name: str, value: Any) -> Any:
    """The value of a setting; of a file its name, of a hash the first digits."""
    if value is None or name not in _NAMES:
        return value
    return Path(str(value)).name if name == _FILE else f"{str(value)[:_DIGITS]}…"


def worth_a_column(names: Sequence[str], runs: Sequence[FoundRun]) -> list[str]:
    """Those of the settings that a list of runs shows: files where they are called otherwise, else what is in them."""
    files = {short_value(_FILE, setting_of(run, _FILE)) for run in runs}
    left = _HASH if len(files) > 1 else _FILE
    return [name for name in names if name != left]
