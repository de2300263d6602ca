"""notes.json: short texts that an experiment's callback leaves in the folder of its run, for the summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hogwild.errors import printable

NOTES = "notes.json"


def write_notes(folder: Path, notes: Mapping[str, str]) -> None:
    """Leave texts by name in the folder of a run; those that were there are replaced."""
    (folder / NOTES).write_text(json.dumps(dict(notes), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_notes(folder: Path | None) -> dict[str, str]:
    """The texts in a folder, by name; none where there is no file, or it holds something else."""
    if folder is not None:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads((folder / NOTES).read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {printable(str(name)): printable(str(text)) for name, text in found.items()}
    return {}
