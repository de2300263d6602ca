"""What a command is asked to train, where no command can."""

from __future__ import annotations

from pathlib import Path

from hogwild.errors import warn_caller
from hogwild.experiment import names
from hogwild.experiment.code import place_of
from hogwild.run.saved.origin import read_origin, refuse_made_by_python


def refuse_what_python_made(wanted: str, resume: Path | None = None) -> None:
    """Refuse the config.toml or the folder of a run that only the program that made it can train."""
    folder = _run_named_by(wanted)
    if folder is not None:
        refuse_made_by_python(folder, lambda name: name not in names(), resumed=resume is not None)


def warn_of_other_machines(wanted: str, nodes: int) -> None:
    """Warn where the run whose config.toml or folder is wanted again averaged over another number of machines."""
    folder = _run_named_by(wanted)
    origin = read_origin(folder) if folder is not None else None
    before = origin.training.get("nodes") if origin is not None else None
    if isinstance(before, int) and before != nodes:
        here = f"{nodes} train" if nodes > 1 else "one trains"
        warn_caller(
            f"the run in {folder} averaged over {before} machines, and {here} here, to another model (--nodes {before} "
            f"averages over as many)"
        )


def _run_named_by(wanted: str) -> Path | None:
    """The folder of the run that is named by it, or by its config.toml; None where something else is named."""
    if place_of(wanted) is not None or wanted in names():
        return None
    path = Path(wanted)
    folder = path if path.is_dir() else path.parent
    other = path.is_file() and path.name != "config.toml"
    return None if other or not (folder / "config.toml").is_file() else folder
