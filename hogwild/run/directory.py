"""The directory that a run is saved in: made, begun, written whole or not at all. Nothing in it is a pickle."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, RunDirectoryError, printable

FORMAT = 1  # of the run directory
SEALED_FILES = ("model.safetensors", "journal.npy")  # a changed byte in one of them is found


def begin_directory(out: Path, config: RunConfig) -> None:
    """Before training: the directory and its config.toml, so that a run that is killed can be resumed.

    A directory without run.json is not taken for a whole run.

    Raises:
        RunDirectoryError: nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.json").unlink(missing_ok=True)
        (out / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"a run cannot be saved in {out}: {printable(str(error))}") from error


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_directory(name: str, out: Path | None = None) -> Iterator[Path]:
    """The folder that a run is saved in: `out`, or a new one, runs/<name>-<time>, that no other run has.

    What is still empty when the block is left, for whatever reason, is removed.

    Raises:
        ArgumentError: the folder cannot be made.
    """
    wanted = out if out is not None else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    ours = [parent for parent in wanted.parents if not parent.exists()]
    kept = out is not None and out.exists()
    try:
        made = _made(wanted, fresh=out is None)
    except OSError as error:
        why = f"out {str(wanted)!r} cannot be made a folder ({error.strerror}); name another one"
        raise ArgumentError(why) from error
    try:
        if not os.access(made, os.W_OK):
            raise ArgumentError(f"out {str(made)!r} is a folder that cannot be written to; name another one")
        yield made
    finally:
        for folder in ours if kept else (made, *ours):
            with suppress(OSError):  # it is not empty, or somebody else removed it
                folder.rmdir()


def _made(wanted: Path, *, fresh: bool) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(exist_ok=not fresh)
        except FileExistsError:
            if not fresh:
                raise
            number += 1
        else:
            return path
