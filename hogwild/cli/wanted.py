"""What a command is asked to train, where no command can."""

from __future__ import annotations

from pathlib import Path

from hogwild.experiment import names
from hogwild.experiment.code import place_of
from hogwild.run.saved.origin import refuse_made_by_python


def refuse_what_python_made(wanted: str, resume: Path | None = None) -> None:
    """Refuse the config.toml or the folder of a run that only the program that made it can train."""
    if place_of(wanted) is not None:
        return
    path = Path(wanted)
    folder = path if path.is_dir() else path.parent
    if wanted in names() or not (folder / "config.toml").is_file() or (path.is_file() and path.name != "config.toml"):
        return
    refuse_made_by_python(folder, lambda name: name not in names(), resumed=resume is not None)
